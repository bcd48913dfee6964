// A lock by rueidis: wait, work and release; give up a wait; look.
//
// Usage: lock port key work counter | try counter | give-up | info
// Work adds one to the counter; try does so only if the lock is free. A wait is given up when standard input ends.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

const ttl, longestWait, refusal = 30 * time.Second, time.Minute, 2 * time.Minute

type locks struct{ rueidis.Client }

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// acquire returns the fence, or 0 when the wait is over. On an error neither a hold nor a request is left.
func (l locks) acquire(ctx context.Context, key, token string) (int64, error) {
	stop := context.AfterFunc(ctx, func() { l.end(key, token) })
	// Blocking gives the wait a connection of its own, without a time-out.
	request := l.B().Arbitrary("SLOCK.LOCK").Keys(key).
		Args(token, milliseconds(ttl), "WAIT", milliseconds(longestWait)).Blocking()
	// The end of ctx would close the connection, which does not take back a grant.
	fence, err := l.Do(context.WithoutCancel(ctx), request).AsInt64()
	stop()
	if err = errors.Join(err, ctx.Err()); err != nil {
		return 0, errors.Join(err, l.end(key, token))
	}
	return fence, nil
}

// tryAcquire returns the fence, or 0 at once when another owner holds or waits. On an error nothing is left.
func (l locks) tryAcquire(ctx context.Context, key, token string) (int64, error) {
	request := l.B().Arbitrary("SLOCK.LOCK").Keys(key).Args(token, milliseconds(ttl)).Build()
	fence, err := l.Do(context.WithoutCancel(ctx), request).AsInt64()
	if err != nil {
		return 0, errors.Join(err, l.end(key, token))
	}
	return fence, nil
}

// end leaves neither a hold nor a request. One that is still on its way is refused when it arrives.
func (l locks) end(key, token string) error {
	// It may be sent twice. After a lost connection rueidis does so only when told to.
	command := l.B().Arbitrary("SLOCK.MUNLOCK", "1").Keys(key).Args(token, "REFUSE", milliseconds(refusal))
	return l.Do(context.Background(), command.Build().ToRetryable()).Error()
}

// info tells the mode, the fence and the tokens of the holders.
func (l locks) info(ctx context.Context, key string) (string, error) {
	reply, err := l.Do(ctx, l.B().Arbitrary("SLOCK.INFO").Keys(key).Args("FULL").Build()).ToAny()
	if rueidis.IsRedisNil(err) {
		return "nobody", nil
	} else if err != nil {
		return "", err
	}
	lock := reply.(map[string]any)
	var tokens []string
	for _, holder := range lock["holders"].([]any) {
		tokens = append(tokens, holder.(map[string]any)["token"].(string))
	}
	return fmt.Sprint(lock["mode"], " ", lock["fence"], " ", strings.Join(tokens, ",")), nil
}

func (l locks) work(ctx context.Context, key, counter string) error {
	token := rand.Text()
	fence, err := l.acquire(ctx, key, token)
	if err != nil {
		return err
	} else if fence == 0 {
		return errors.New("the wait is over")
	}
	return l.addAndRelease(ctx, key, token, counter)
}

func (l locks) tryToWork(ctx context.Context, key, counter string) (string, error) {
	token := rand.Text()
	if fence, err := l.tryAcquire(ctx, key, token); fence == 0 {
		return "busy", err
	}
	return "done", l.addAndRelease(ctx, key, token, counter)
}

func (l locks) addAndRelease(ctx context.Context, key, token, counter string) error {
	value, _ := l.Do(ctx, l.B().Get().Key(counter).Build()).AsInt64()
	err := l.Do(ctx, l.B().Set().Key(counter).Value(strconv.FormatInt(value+1, 10)).Build()).Error()
	return errors.Join(err, l.end(key, token))
}

func (l locks) waitUntilTheInputEnds(key string) error {
	ctx, cancel := context.WithCancel(context.Background())
	go func() { io.Copy(io.Discard, os.Stdin); cancel() }()
	_, err := l.acquire(ctx, key, rand.Text())
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return fmt.Errorf("not given up: %w", err)
}

func main() {
	ctx, key := context.Background(), os.Args[2]
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{"127.0.0.1:" + os.Args[1]}})
	if err != nil {
		log.Fatal(err)
	}
	locks := locks{client}
	text := ""
	switch os.Args[3] {
	case "work":
		err = locks.work(ctx, key, os.Args[4])
	case "give-up":
		err = locks.waitUntilTheInputEnds(key)
	case "try":
		text, err = locks.tryToWork(ctx, key, os.Args[4])
	case "info":
		text, err = locks.info(ctx, key)
	}
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(text)
}
