package slock

import (
	"crypto/rand"
	"encoding/hex"
)

// newToken is 128 random bits, as text.
func newToken() string {
	var bits [16]byte
	_, _ = rand.Read(bits[:]) // never fails
	return hex.EncodeToString(bits[:])
}
