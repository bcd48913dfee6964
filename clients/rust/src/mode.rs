use std::fmt;

/// Whether a hold excludes everybody else or shares the lock with other readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The only holder.
    Write,
    /// One of any number of readers.
    Read,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Write => "write",
            Mode::Read => "read",
        })
    }
}
