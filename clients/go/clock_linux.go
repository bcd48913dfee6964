package slock

import (
	"syscall"
	"unsafe"
)

// clockBoottime is CLOCK_BOOTTIME of clock_gettime(2): it goes on while the machine sleeps, which the clock of the
// standard library does not.
const clockBoottime = 7

var hasBoottime = func() bool {
	_, ok := boottime()
	return ok
}()

func now() instant {
	if hasBoottime {
		at, _ := boottime()
		return at
	}
	return monotonic()
}

func boottime() (instant, bool) {
	var at syscall.Timespec
	// SAFETY: the kernel writes one Timespec to where the pointer leads, and keeps nothing.
	_, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&at)), 0)
	return instant(at.Nano()), errno == 0
}
