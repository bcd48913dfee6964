// SPDX-License-Identifier: MIT OR Apache-2.0

//! Locks for programs without async.
//!
//! The operations are those of [`crate`], and block the thread. One thread of the library's renews what is held,
//! and receives the messages on which waits end. As all that blocks, this must not be called in async code.
//!
//! ```no_run
//! use slock_client::blocking::Locks;
//! use slock_client::redis;
//! use std::time::Duration;
//!
//! fn main() -> Result<(), slock_client::Error> {
//!     let locks = Locks::new(redis::Client::open("redis://127.0.0.1/")?);
//!     let fence = locks.write("job:42").wait(Duration::from_secs(5)).run(|hold| {
//!         // Work, with hold.fence() in every write, and hold.check() before each step that matters.
//!         hold.fence()
//!     })?;
//!     println!("done under fencing token {fence}");
//!     Ok(())
//! }
//! ```

use std::ops::Deref;
use std::sync::{LazyLock, mpsc};
use std::time::Duration;

use redis::ToRedisArgs;
use tokio::runtime::{Builder, Handle, Runtime};
use tracing::Instrument;

use crate::errors::{Error, Result};
use crate::info::{Info, Mode, Queue};
use crate::options::{LONGEST, Options, shared_options};
use crate::server::Server;

/// The thread of the library's, which a program has once.
static BACKGROUND: LazyLock<Runtime> = LazyLock::new(|| {
    let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("slock").enable_all().build();
    runtime.expect("the system has a thread for the library")
});

/// Declares methods that wait for those of the same name.
macro_rules! waiting {
    ($of:ident: $(fn $name:ident($($given:ident: $type:ty),*) -> $result:ty;)*) => { $(
        #[doc = concat!("As [`", stringify!($name), "`](crate::", stringify!($of), "::", stringify!($name), ").")]
        ///
        /// # Errors
        ///
        /// The same.
        pub fn $name(&self, $($given: $type),*) -> $result {
            BACKGROUND.block_on(self.0.$name($($given),*))
        }
    )* };
}

/// As [`Locks`](crate::Locks), for programs without async. It is cheap to clone, and clones share everything.
#[derive(Clone, Debug)]
pub struct Locks(crate::Locks);

impl Locks {
    /// Locks with the defaults of all options. It sends nothing, and opens no connection.
    pub fn new(server: impl Into<Server>) -> Self {
        Self(crate::Locks::new(server))
    }

    /// As [`write`](crate::Locks::write).
    pub fn write(&self, keys: impl ToRedisArgs) -> Request {
        Request(self.0.write(keys))
    }

    /// As [`read`](crate::Locks::read).
    pub fn read(&self, keys: impl ToRedisArgs) -> Request {
        Request(self.0.read(keys))
    }

    /// As [`request`](crate::Locks::request).
    pub fn request(&self, keys: impl ToRedisArgs, mode: Mode) -> Request {
        Request(self.0.request(keys, mode))
    }

    /// As [`adopt`](crate::Locks::adopt).
    ///
    /// # Errors
    ///
    /// The same.
    pub fn adopt(&self, keys: impl ToRedisArgs, token: impl Into<String>, mode: Mode) -> Result<Hold, Error> {
        self.request(keys, mode).token(token).adopt()
    }

    waiting! { Locks:
        fn release(keys: impl ToRedisArgs, token: impl Into<String>) -> Result<usize, Error>;
        fn info(key: &str) -> Result<Option<Info>, Error>;
        fn queues() -> Result<Vec<Queue>, Error>;
        fn close() -> ();
        fn close_and_release() -> Result<(), Error>;
    }
}

impl From<crate::Locks> for Locks {
    /// For locks with options: `Locks::from(slock_client::Locks::builder(client).prefix("app:").build())`.
    fn from(locks: crate::Locks) -> Self {
        Self(locks)
    }
}

/// As [`Request`](crate::Request), for programs without async.
#[derive(Clone, Debug)]
#[must_use = "a request does nothing until it is acquired"]
pub struct Request(crate::Request);

impl Request {
    shared_options!();

    fn options_mut(&mut self) -> &mut Options {
        self.0.options_mut()
    }

    /// As [`token`](crate::Request::token).
    pub fn token(self, token: impl Into<String>) -> Self {
        Self(self.0.token(token))
    }

    /// As [`acquire`](crate::Request::acquire).
    ///
    /// # Errors
    ///
    /// The same.
    pub fn acquire(&self) -> Result<Hold, Error> {
        BACKGROUND.block_on(self.0.acquire()).map(Hold)
    }

    /// As [`try_acquire`](crate::Request::try_acquire).
    ///
    /// # Errors
    ///
    /// The same.
    pub fn try_acquire(&self) -> Result<Option<Hold>, Error> {
        Ok(BACKGROUND.block_on(self.0.try_acquire())?.map(Hold))
    }

    /// Runs the work under the lock: it waits, runs the work, and releases. If the hold is lost meanwhile, the work learns of
    /// it by [`check`](crate::Hold::check).
    ///
    /// # Errors
    ///
    /// Those of [`run`](crate::Request::run).
    pub fn run<T>(&self, work: impl FnOnce(&Hold) -> T) -> Result<T, Error> {
        let hold = self.acquire()?;
        let result = work(&hold);
        match hold.release() {
            Err(loss @ Error::Lost { .. }) => Err(loss),
            _ => Ok(result),
        }
    }

    /// As [`adopt`](crate::Request::adopt).
    ///
    /// # Errors
    ///
    /// The same.
    pub fn adopt(&self) -> Result<Hold, Error> {
        BACKGROUND.block_on(self.0.adopt()).map(Hold)
    }
}

/// As [`Hold`](crate::Hold), for programs without async; it dereferences to that, for all that does not block. If it is
/// dropped, it is released, and that waits for the reply, for at most the time of `retry_for`.
#[derive(Debug)]
#[must_use = "the lock is released when its hold is dropped"]
pub struct Hold(crate::Hold);

impl Hold {
    waiting! { Hold:
        fn release() -> Result<(), Error>;
        fn extend(ttl: Duration) -> Result<(), Error>;
        fn upgrade(wait: impl Into<Option<Duration>>) -> Result<i64, Error>;
        fn downgrade() -> Result<i64, Error>;
    }
}

impl Deref for Hold {
    type Target = crate::Hold;

    fn deref(&self) -> &crate::Hold {
        &self.0
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        // A hook may drop it, on the only thread that could release it. Then that goes on in the background.
        if Handle::try_current().is_ok_and(|current| current.id() == BACKGROUND.handle().id()) {
            return;
        }
        let (hold, (done, released)) = (self.0.inner.clone(), mpsc::channel::<()>());
        let release = async move {
            // It says nothing if it is released already, and a failure has been reported to hook and log.
            let _ = hold.released().await;
            drop(done);
        };
        BACKGROUND.spawn(release.in_current_span());
        let _ = released.recv();
    }
}
