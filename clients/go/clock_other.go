// SPDX-License-Identifier: MIT OR Apache-2.0

//go:build !linux

package slock

import "time"

func sleepingClock() time.Duration { return monotonic() }
