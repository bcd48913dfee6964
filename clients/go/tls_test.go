package slock_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"slock.example/go"
)

// startTLS lets a server listen with TLS too, and gives the address and who has signed its certificate.
func startTLS(t *testing.T, w *world) (string, *x509.CertPool) {
	t.Helper()
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	certificate := must(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))
	write := func(name, kind string, bytes []byte) string {
		path := filepath.Join(w.dir, name)
		text := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: bytes})
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	port := strconv.Itoa(must(freePort()))
	err := w.rdb.Do(t.Context(), "CONFIG", "SET", "tls-auth-clients", "no", "tls-port", port,
		"tls-cert-file", write("certificate", "CERTIFICATE", certificate),
		"tls-key-file", write("key", "PRIVATE KEY", must(x509.MarshalPKCS8PrivateKey(key)))).Err()
	if err != nil && strings.Contains(err.Error(), "Unknown option") {
		t.Skip("the server was built without TLS")
	} else if err != nil {
		t.Fatal(err)
	}
	signers := x509.NewCertPool()
	signers.AddCert(must(x509.ParseCertificate(certificate)))
	return net.JoinHostPort("127.0.0.1", port), signers
}

// The connections of the library have the TLS of the program's client, also the one that listens.
func TestTLS(t *testing.T) {
	w := newWorld(t)
	address, signers := startTLS(t, w)
	rdb := redis.NewClient(&redis.Options{Addr: address, TLSConfig: &tls.Config{RootCAs: signers}})
	defer rdb.Close()
	locks := slock.New(rdb, slock.TTL(500*time.Millisecond))
	defer locks.Close()
	first := must(locks.Write("job").Lock(t.Context()))
	next := make(chan *slock.Hold)
	go func() { next <- must(locks.Write("job").Lock(t.Context())) }()
	w.waiters("job", 1)
	eventually(t, func() bool { return w.calls("slock.extend") > 0 })
	if err := first.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := (<-next).Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestCertificateThatIsRefused(t *testing.T) {
	w := newWorld(t)
	address, _ := startTLS(t, w)
	rdb := redis.NewClient(&redis.Options{Addr: address, TLSConfig: &tls.Config{}})
	defer rdb.Close()
	locks := slock.New(rdb, slock.RetryFor(200*time.Millisecond))
	defer locks.Close()
	_, err := locks.Write("job").Lock(t.Context())
	var unknown x509.UnknownAuthorityError
	if !errors.Is(err, slock.ErrTimedOut) || !errors.As(err, &unknown) {
		t.Fatal(err)
	}
}
