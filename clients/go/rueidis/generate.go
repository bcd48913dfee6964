// SPDX-License-Identifier: MIT OR Apache-2.0

// Package rueidis is a module of its own, so that package slock does not depend on rueidis and valkey-go. Its packages
// slockrueidis and slockvalkey take locks over their clients.
package rueidis

//go:generate sh -c "sed -f valkey.sed slockrueidis/transport.go > slockvalkey/transport.go"
//go:generate sh -c "sed -f valkey.sed agent/rueidis.go > agent/valkey.go"
