package slock_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
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
	go func() {
		hold, err := w.locks.Write("job").Lock(t.Context())
		if err == nil {
			err = hold.Unlock(t.Context())
		}
		second <- err
	}()
	testserver.Eventually(t, func() bool { return w.info("job", "waiters") == int64(1) })
	left := first.Remaining()
	testserver.Eventually(t, func() bool { // until it has been renewed
		before := left
		left = first.Remaining()
		return left > before
	})
	is(t, first.Unlock(t.Context()), nil)
	if err := <-second; err != nil {
		t.Error(err)
	}
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

// With this option, which newer go-redis has, a client connects only to servers that have maintenance notifications. The
// program gets the error of its client.
func TestMaintenanceNotifications(t *testing.T) {
	redis.SetLogger(&logged{})
	var options redis.Options
	field := reflect.ValueOf(&options).Elem().FieldByName("MaintNotificationsConfig")
	if !field.IsValid() {
		t.Skip("this go-redis has no maintenance notifications")
	}
	field.Set(reflect.New(field.Type().Elem()))
	field.Elem().FieldByName("Mode").SetString("enabled")
	w := newWorld(t, options)
	if err := w.rdb.Ping(t.Context()).Err(); err == nil {
		use(t, w)
	} else if _, failed := w.locks.Write("job").TryLock(t.Context()); failed == nil || failed.Error() != err.Error() {
		t.Error(failed, err)
	}
}

func TestProgramUsesItsClientMeanwhile(t *testing.T) {
	w := newWorld(t, redis.Options{})
	var all sync.WaitGroup
	for range 4 {
		all.Add(2)
		go func() {
			defer all.Done()
			for range 100 {
				w.rdb.Ping(t.Context())
			}
		}()
		go func() {
			defer all.Done()
			locks := slock.New(w.rdb)
			for range 20 {
				is(t, locks.Write("job").Do(t.Context(), func(context.Context) error { return nil }), nil)
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
	if before.count("SLOCK.LOCK") != 1 || before.count("SLOCK.MUNLOCK") != 1 {
		t.Error(before.names)
	}
	w.rdb.AddHook(after) // New was called before
	testserver.Eventually(t, func() bool {
		is(t, w.locks.Write("job").Do(t.Context(), work), nil)
		return after.count("SLOCK.LOCK") > 0 && after.count("SLOCK.MUNLOCK") > 0
	})
}

func TestWrongClient(t *testing.T) {
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"one": "127.0.0.1:1"}})
	defer ring.Close()
	_, err := slock.New(ring).Write("job").Lock(t.Context())
	is(t, err, []error{slock.ErrInvalid}, "*redis.Ring", "*redis.Client")
}

// startTLS has the server listen with TLS too, and gives the address and who has signed its certificate.
func startTLS(t *testing.T, w *world) (string, *x509.CertPool) {
	t.Helper()
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	certificate := must(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))
	write := func(name, kind string, bytes []byte) string {
		path := filepath.Join(w.Dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: bytes}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	address := must(testserver.FreeAddress())
	_, port, _ := net.SplitHostPort(address)
	err := w.plain.Do(t.Context(), "CONFIG", "SET", "tls-auth-clients", "no", "tls-port", port,
		"tls-cert-file", write("certificate", "CERTIFICATE", certificate),
		"tls-key-file", write("key", "PRIVATE KEY", must(x509.MarshalPKCS8PrivateKey(key)))).Err()
	if err != nil && strings.Contains(err.Error(), "Unknown option") {
		t.Skip("the server was built without TLS")
	} else if err != nil {
		t.Fatal(err)
	}
	signers := x509.NewCertPool()
	signers.AddCert(must(x509.ParseCertificate(certificate)))
	return address, signers
}

// All connections of the library have the TLS of the program's client, also the one that listens.
func TestTLS(t *testing.T) {
	w := newWorld(t, redis.Options{})
	address, signers := startTLS(t, w)
	rdb := redis.NewClient(&redis.Options{Addr: address, TLSConfig: &tls.Config{RootCAs: signers}})
	defer rdb.Close()
	w.locks = slock.New(rdb)
	use(t, w)
}

// go-redis says what is wrong with a connection after it has tried several.
func TestCertificateThatIsRefused(t *testing.T) {
	w := newWorld(t, redis.Options{})
	address, _ := startTLS(t, w)
	rdb := redis.NewClient(&redis.Options{Addr: address, TLSConfig: &tls.Config{}})
	defer rdb.Close()
	locks := slock.New(rdb, slock.RetryFor(2*time.Second))
	defer locks.Close()
	_, err := locks.Write("job").Lock(t.Context())
	is(t, err, []error{slock.ErrNoAnswer}, "unknown authority")
}
