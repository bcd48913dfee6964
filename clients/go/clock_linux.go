// SPDX-License-Identifier: MIT OR Apache-2.0

package slock

import (
	"syscall"
	"time"
	"unsafe"
)

// clockBoottime is CLOCK_BOOTTIME of clock_gettime(2): it goes on while the machine sleeps, which the clock of the
// standard library does not.
const clockBoottime = 7

func sleepingClock() time.Duration {
	var at syscall.Timespec
	// SAFETY: the kernel writes one Timespec to where the pointer leads, and keeps nothing. It fails only where it has
	// no such clock, and so always or never: instants of the two clocks never meet.
	_, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&at)), 0)
	if errno != 0 {
		return monotonic()
	}
	return time.Duration(at.Nano())
}
