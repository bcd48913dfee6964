// SPDX-License-Identifier: MIT OR Apache-2.0

//! The first process of a container: the kernel gives it every process whose parent has ended, and it has to take their
//! ends. So slock, if it is the first process, goes on as a child, and the first process does that and nothing else.

/// Comes back as the child, or at once if this is not the first process. No thread may have been started.
pub fn split() {
    if std::process::id() != 1 {
        return;
    }
    // SAFETY: system calls on plain data that lives here. There is one thread, so the child may do everything.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_BLOCK, &raw const all, &raw mut before);
        let child = libc::fork();
        if child <= 0 {
            libc::sigprocmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
            return;
        }
        loop {
            let mut signal = 0;
            libc::sigwait(&raw const all, &raw mut signal);
            match signal {
                libc::SIGCHLD => take_ends(child),
                // The terminal stops the child by itself.
                libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU => {}
                signal => {
                    libc::kill(child, signal);
                }
            }
        }
    }
}

/// Takes the ends of all that have ended, and ends with the child.
fn take_ends(child: libc::pid_t) {
    loop {
        let mut status = 0;
        // SAFETY: a system call that writes to a number that lives here.
        let ended = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
        if ended <= 0 {
            return;
        }
        if ended == child {
            let by_signal = libc::WIFSIGNALED(status);
            std::process::exit(if by_signal {
                128 + libc::WTERMSIG(status)
            } else {
                libc::WEXITSTATUS(status)
            });
        }
    }
}
