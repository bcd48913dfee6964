//! A command that has no answer yet.

use crate::answer::Failure;

/// Notes that a command got no answer, also when the future that waits for it is dropped: the server may
/// execute it at any later time, after commands that were sent later over another connection.
pub(crate) struct OnItsWay<N: Fn()> {
    note: N,
    answered: bool,
}

impl<N: Fn()> OnItsWay<N> {
    pub(crate) fn new(note: N) -> Self {
        Self { note, answered: false }
    }

    /// This is how it went. An error of the server is an answer.
    pub(crate) fn ended<T>(mut self, answer: &Result<T, Failure>) {
        self.answered = !matches!(answer, Err(Failure::Connection(_)));
    }
}

impl<N: Fn()> Drop for OnItsWay<N> {
    fn drop(&mut self) {
        if !self.answered {
            (self.note)();
        }
    }
}
