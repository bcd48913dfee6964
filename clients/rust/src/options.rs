//! What is asked for: keys, mode and options, with their defaults and checks.

use std::sync::Arc;
use std::time::Duration;

use derive_more::Display;
use redis::ToRedisArgs;

use crate::errors::Error;
use crate::polling::Poll;

/// Whether a hold excludes everybody else or shares the lock with other readers.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The only holder.
    #[display("write")]
    Write,
    /// One of any number of readers.
    #[display("read")]
    Read,
}

/// How a request waits for a lock that others have.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Waiting {
    /// On the server; all waits share one connection. A user without permission for the channel waits as with
    /// [`Waiting::Block`].
    #[default]
    Notify,
    /// On the server; each wait has a connection of its own.
    Block,
    /// The client asks again and again.
    Poll(Poll),
}

/// Longer durations mean the same, and sums with them stay within the range of the clock. No server takes a
/// ttl of more than a year.
pub(crate) const LONGEST: Duration = Duration::from_secs(10 * 366 * 24 * 60 * 60);

/// A hold is valid for its ttl less 1 ms: nothing would be left of a shorter one.
pub(crate) const SHORTEST_TTL: Duration = Duration::from_millis(2);

/// The options of a request: name, type and default of each, and what is noted of what the program gives. Makes of
/// them `Options`, and `shared_options!`, the methods of a request and of the builder of its maker.
macro_rules! options {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $default:expr, by |$given:ident: $from:ty| $noted:expr;)*) => {
        #[derive(Clone, Debug)]
        pub(crate) struct Options {
            pub(crate) token: Option<String>,
            $(pub(crate) $name: $type,)*
        }

        impl Default for Options {
            fn default() -> Self {
                Self { token: None, $($name: $default,)* }
            }
        }

        macro_rules! shared_options {
            () => { $(
                $(#[$doc])*
                pub fn $name(mut self, $given: $from) -> Self {
                    self.options_mut().$name = $noted;
                    self
                }
            )* };
        }
        pub(crate) use shared_options;
    };
}

options! {
    /// How long the hold lives without a renewal: at least 2 ms, and 10 s unless it is set. The server takes whole
    /// milliseconds, rounded up.
    ttl: Duration = Duration::from_secs(10), by |ttl: Duration| ttl.min(LONGEST);

    /// How long [`acquire`](crate::Request::acquire) waits at most. Without it, until the lock is granted.
    wait: Option<Duration> = None, by |wait: Duration| Some(wait.min(LONGEST));

    /// Text that `SLOCK.INFO key FULL` shows with the hold and the request, up to 1024 bytes.
    metadata: Option<String> = None, by |metadata: impl Into<String>| Some(metadata.into());

    /// Whether the watchdog renews the hold. It does unless this says `false`.
    renew: bool = true, by |renew: bool| renew;

    /// The hold is lost this long after the grant, and not renewed any more. So a stuck task does not hold for ever.
    longest_lease: Option<Duration> = None, by |longest_lease: Duration| Some(longest_lease.min(LONGEST));

    /// For reading: granted only while fewer than this many others read. A semaphore. Among the options of all requests
    /// it is that of the readers.
    limit: Option<u32> = None, by |limit: u32| Some(limit);

    /// The name under which [`Hooks`](crate::Hooks) and the log report it. The first key unless it is set.
    label: Option<String> = None, by |label: impl Into<String>| Some(label.into());

    /// The hold counts only when this many replicas have it; else it is released and the error is
    /// [`Error::TooFewReplicas`](crate::Error::TooFewReplicas). 0 unless it is set, and not for a quorum.
    ///
    /// A failover can still lose the lock, but only one that reached none of the replicas that remain.
    min_replicas: u32 = 0, by |least: u32| least;

    /// How long to wait for the replicas, beyond the wait for the lock. 1 s unless it is set.
    replica_timeout: Duration = Duration::from_secs(1), by |timeout: Duration| timeout.min(LONGEST);
}

/// What a request asks for.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub(crate) keys: Arc<[String]>,
    pub(crate) mode: Mode,
    pub(crate) options: Options,
}

impl Wanted {
    /// Keys that are not all text are as none.
    pub(crate) fn new(keys: &impl ToRedisArgs, mode: Mode, options: Options) -> Self {
        let keys = keys.to_redis_args().into_iter().map(String::from_utf8).collect::<Result<_, _>>();
        Self { keys: keys.unwrap_or_default(), mode, options }
    }

    pub(crate) fn check(&self, poll: Option<&Poll>) -> Result<(), Error> {
        let text = match self.options.limit {
            _ if self.keys.is_empty() => "at least one key is needed, and keys are text",
            Some(0) => "the limit is 0, and must be at least 1",
            _ if poll.is_some_and(Poll::has_no_pause) => "a pause of polling is 0, and must be longer",
            Some(_) if self.mode == Mode::Write => "the limit is for reading",
            _ => return Ok(()),
        };
        Err(Error::InvalidArgument(text.into()))
    }

    /// The name under which a request is reported: the first key, unless another was given.
    pub(crate) fn label(&self) -> &str {
        self.options.label.as_deref().unwrap_or(&self.keys[0])
    }
}
