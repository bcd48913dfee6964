package slock_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"slock.example/go"
	"slock.example/go/internal/testserver"
)

// use takes a lock, waits for it by a message, renews it, and closes.
func use(t *testing.T, w *world) {
	t.Helper()
	first := must(w.locks.Write("job").With(slock.TTL(2 * time.Second)).Lock(t.Context()))
	second := make(chan error)
	go func() { second <- w.locks.Write("job").Do(t.Context(), func(context.Context) error { return nil }) }()
	testserver.Eventually(t, func() bool { return w.info("job", "waiters") == int64(1) })
	left := first.Remaining()
	testserver.Eventually(t, func() bool { // until it has been renewed
		before := left
		left = first.Remaining()
		return left > before
	})
	is(t, first.Unlock(t.Context()), nil)
	is(t, <-second, nil)
	_ = w.locks.Close()
}

func TestNothingIsLoggedByGoRedis(t *testing.T) {
	log := &logged{}
	redis.SetLogger(log)
	defer redis.SetLogger(&logged{})
	w := newWorld(t, redis.Options{})
	use(t, w)
	if log.String() != "" || w.log.String() != "" {
		t.Error(log, w.log)
	}
}

func TestProgramUsesItsClientMeanwhile(t *testing.T) {
	w := newWorld(t, redis.Options{})
	var all sync.WaitGroup
	for range 4 {
		all.Add(1)
		go func() {
			defer all.Done()
			locks := slock.New(w.rdb)
			for range 20 {
				is(t, locks.Write("job").Do(t.Context(), func(ctx context.Context) error { return w.rdb.Ping(ctx).Err() }), nil)
			}
			_ = locks.Close()
		}()
	}
	all.Wait()
}

func TestHooksOfTheClientSeeTheCommands(t *testing.T) {
	w := newWorld(t, redis.Options{})
	before, after := &seen{}, &seen{}
	w.rdb.AddHook(before)
	work := func(context.Context) error { return nil }
	is(t, w.locks.Write("job").Do(t.Context(), work), nil)
	if !before.hasLockAndUnlock() {
		t.Error("they were not seen")
	}
	w.rdb.AddHook(after) // New was called before
	testserver.Eventually(t, func() bool {
		is(t, w.locks.Write("job").Do(t.Context(), work), nil)
		return after.hasLockAndUnlock()
	})
}

// While new connections stall, a wait ends in time, and does not delay other locks.
func TestConnectionsThatStall(t *testing.T) {
	isStalling, stalled := atomic.Bool{}, make(chan any, 9)
	w := newWorld(t, redis.Options{PoolSize: 1, Dialer: func(ctx context.Context, network, address string) (net.Conn, error) {
		if isStalling.Load() {
			stalled <- nil
			ctx, end := context.WithTimeout(ctx, 10*time.Second)
			defer end()
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return new(net.Dialer).DialContext(ctx, network, address)
	}})
	must(w.locks.Write("job").Lock(t.Context()))
	isStalling.Store(true)
	ended := make(chan error)
	go func() { _, err := w.locks.Write("job").With(slock.Wait(time.Second)).Lock(t.Context()); ended <- err }()
	<-stalled
	within(t, 0, func() { must(w.locks.Write("other").Lock(t.Context())) })
	within(t, time.Second, func() { <-ended })
	within(t, time.Second, func() { _ = w.locks.Close() })
}

func TestWrongClient(t *testing.T) {
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"one": "127.0.0.1:1"}})
	defer ring.Close()
	_, err := slock.New(ring).Write("job").Lock(t.Context())
	is(t, err, []error{slock.ErrInvalid}, "*redis.Ring", "*redis.Client")
}

// The program may say itself which servers a cluster has.
func TestClusterSlots(t *testing.T) {
	w := newWorld(t, redis.Options{})
	all := []redis.ClusterSlot{{End: 16383, Nodes: []redis.ClusterNode{{Addr: w.Addr}}}}
	slots := func(context.Context) ([]redis.ClusterSlot, error) { return all, nil }
	rdb := redis.NewClusterClient(&redis.ClusterOptions{ClusterSlots: slots})
	defer rdb.Close()
	w.locks = slock.New(rdb)
	use(t, w)
}

// All connections of the library have the TLS of the program's client, also the one that listens.
func TestTLS(t *testing.T) {
	w := newWorld(t, redis.Options{})
	signed := httptest.NewTLSServer(nil) // which has a certificate for this host
	defer signed.Close()
	write := func(name, kind string, bytes []byte) string {
		path := filepath.Join(w.Dir, name)
		is(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: bytes}), 0o600), nil)
		return path
	}
	address, pair := must(testserver.FreeAddress()), signed.TLS.Certificates[0]
	_, port, _ := net.SplitHostPort(address)
	err := w.plain.Do(t.Context(), "CONFIG", "SET", "tls-auth-clients", "no", "tls-port", port,
		"tls-cert-file", write("certificate", "CERTIFICATE", pair.Certificate[0]),
		"tls-key-file", write("key", "PRIVATE KEY", must(x509.MarshalPKCS8PrivateKey(pair.PrivateKey)))).Err()
	if err != nil && strings.Contains(err.Error(), "Unknown option") {
		t.Skip("the server was built without TLS")
	}
	is(t, err, nil)
	signers := x509.NewCertPool()
	signers.AddCert(signed.Certificate())
	rdb := redis.NewClient(&redis.Options{Addr: address, TLSConfig: &tls.Config{RootCAs: signers}})
	defer rdb.Close()
	w.locks = slock.New(rdb)
	use(t, w)
	rdb = redis.NewClient(&redis.Options{Addr: address, TLSConfig: &tls.Config{}})
	defer rdb.Close()
	_, err = slock.New(rdb, slock.RetryFor(2*time.Second)).Write("job").Lock(t.Context())
	is(t, err, []error{slock.ErrNoAnswer}, "unknown authority")
}
