package testserver

import (
	"os/exec"
	"syscall"
)

// endWithParent lets the kernel kill the process when the thread that started it ends.
func endWithParent(process *exec.Cmd) {
	process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
