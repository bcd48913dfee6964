// Command fenced shows why a write carries the fencing token of its lock: an owner that was stopped does not know that its
// lock has expired, and writes late. The database rejects that write.
package main

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"flag"
	"fmt"
	"log"
	"time"

	"github.com/redis/go-redis/v9"

	"slock.example/go"
)

// database is a *sql.DB.
type database interface {
	ExecContext(ctx context.Context, query string, arguments ...any) (sql.Result, error)
}

var errStale = errors.New("a later owner of the lock has written")

// write changes a document under a lock. The row keeps the greatest fencing token that has written it. An owner may write
// several times, hence <= and not <.
func write(ctx context.Context, db database, hold *slock.Hold, body string) error {
	result, err := db.ExecContext(ctx,
		`UPDATE documents SET body = $1, fence = $2 WHERE id = $3 AND fence <= $2`, body, hold.Fence(), "readme")
	if err != nil {
		return err
	}
	if rows, err := result.RowsAffected(); err != nil || rows == 1 {
		return err
	}
	return errStale
}

func main() {
	address := flag.String("address", "localhost:6379", "the server, with the module")
	flag.Parse()
	if err := run(context.Background(), *address, &row{}); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, address string, db database) error {
	rdb := redis.NewClient(&redis.Options{Addr: address})
	defer rdb.Close()
	locks := slock.New(rdb)
	defer locks.Close()

	// The first owner does not renew, as if its process were stopped.
	request := locks.Write("example:readme")
	first, err := request.With(slock.TTL(50*time.Millisecond), slock.NoRenewal()).Lock(ctx)
	if err != nil {
		return err
	}
	second, err := request.Lock(ctx) // granted when the first hold has expired
	if err != nil {
		return err
	}
	defer second.Unlock(ctx)
	if err := write(ctx, db, second, "new"); err != nil {
		return err
	}
	fmt.Println("the second owner has written")
	if err := write(ctx, db, first, "old"); !errors.Is(err, errStale) {
		return fmt.Errorf("the late write of the first owner ended with %v", err)
	}
	fmt.Println("the late write of the first owner was rejected")
	return nil
}

// row stands for the table: it does what the statement above does to its one row.
type row struct {
	body  string
	fence int64
}

func (r *row) ExecContext(_ context.Context, _ string, arguments ...any) (sql.Result, error) {
	body, fence := arguments[0].(string), arguments[1].(int64)
	if fence < r.fence {
		return driver.RowsAffected(0), nil
	}
	r.body, r.fence = body, fence
	return driver.RowsAffected(1), nil
}
