package slock_test
import ("testing";"context";"time";"fmt"
"github.com/redis/go-redis/v9"
slock "slock.example/go")
func TestDbg(t *testing.T){
 rdb := redis.NewClient(&redis.Options{Addr:"127.0.0.1:7999"})
 l := slock.New(rdb)
 h,err := l.Write("e").With(slock.TTL(2*time.Second), slock.MaxHold(time.Second), slock.NoRenewal()).Lock(context.Background())
 fmt.Println(h,err)
 b:=time.Now()
 <-h.Context().Done()
 fmt.Println(time.Since(b), context.Cause(h.Context()))
 h,err = l.Write("e2").With(slock.TTL(600*time.Millisecond), slock.MaxHold(time.Second)).Lock(context.Background())
 b=time.Now()
 <-h.Context().Done()
 fmt.Println(time.Since(b), context.Cause(h.Context()))
}
