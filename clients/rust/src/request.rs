//! What is wanted: keys, mode and options. What single servers and quorums have in common.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::errors::{Error, Reason};
use crate::held::Held;
use crate::hooks::Hooks;
use crate::options::{IntoKeys, Mode, Options, Wanted, replica_options, shared_options};

/// What [`Locks`](crate::Locks) and [`Quorum`](crate::Quorum) have in common: a program can take either.
///
/// ```
/// use slock_client::{Error, Holding, Locking};
///
/// async fn with_either(locks: &impl Locking) -> Result<bool, Error> {
///     let hold = locks.write("job:42").acquire().await?;
///     hold.held().check()?;
///     hold.release().await
/// }
/// ```
pub trait Locking: Clone + Send + Sync + 'static {
    /// What a granted request gives.
    type Hold: Holding;

    /// A request in the mode that is given.
    fn request(&self, keys: impl IntoKeys, mode: Mode) -> Request<Self>;

    /// A request to be the only holder of the key, or of all the keys.
    fn write(&self, keys: impl IntoKeys) -> Request<Self> {
        self.request(keys, Mode::Write)
    }

    /// A request to share the key, or all the keys, with other readers.
    fn read(&self, keys: impl IntoKeys) -> Request<Self> {
        self.request(keys, Mode::Read)
    }

    /// Releases what the token holds, in whichever mode. Gives how many keys it held, or for a quorum on how
    /// many servers.
    fn release(
        &self,
        keys: impl IntoKeys + Send,
        token: impl Into<String> + Send,
    ) -> impl Future<Output = Result<usize, Error>> + Send;

    /// Closes the connections. It releases nothing.
    fn close(&self) -> impl Future<Output = ()> + Send;

    /// One acquisition. Nothing when it asks once and is refused. Boxed, so that the depth of types in the
    /// programs of users stays small.
    #[doc(hidden)]
    fn ask(&self, wanted: Arc<Wanted>, once: bool) -> BoxFuture<'static, Result<Option<Self::Hold>, Error>>;

    /// A hold of what the token has already.
    #[doc(hidden)]
    fn take_over(&self, wanted: Arc<Wanted>, token: String) -> BoxFuture<'static, Result<Self::Hold, Error>>;
}

/// What the holds of [`Locks`](crate::Locks) and [`Quorum`](crate::Quorum) have in common. Dropping one
/// releases it in the background.
pub trait Holding: Deref<Target = Self::View> + Send + Sync + Sized + 'static {
    /// All that can be seen and done with a hold but to end it, for other tasks.
    type View: Deref<Target = Held> + Clone + Send + Sync + 'static;

    /// A view of this hold for another task.
    fn view(&self) -> Self::View {
        Self::View::clone(self)
    }

    /// What can be seen of the hold.
    fn held(&self) -> &Held {
        self
    }

    /// Makes the hold valid for this ttl from now on, and never shortens.
    fn extend(&self, ttl: Duration) -> impl Future<Output = Result<(), Error>> + Send;

    /// Releases the hold. Gives whether it was valid until now and still there.
    fn release(self) -> impl Future<Output = Result<bool, Error>> + Send;

    /// Ends the hold here without releasing it: whoever has token and keys adopts it.
    fn hand_over(self) -> Result<(), Error>;
}

/// What [`Locks`](crate::Locks) or a [`Quorum`](crate::Quorum) is asked for. Making one sends nothing, and one
/// may be used many times. Each use takes a token of its own, unless the request was given one.
///
/// ```no_run
/// # async fn example(locks: slock_client::Locks) -> Result<(), slock_client::Error> {
/// use std::time::Duration;
///
/// let request = locks.read(["{shop}:stock", "{shop}:prices"]).ttl(Duration::from_secs(5));
/// let total = request.run(|hold| async move { hold.fence() }).await?;
/// if let Some(hold) = request.try_acquire().await? {
///     hold.release().await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "a request does nothing until it is acquired"]
pub struct Request<L: Locking> {
    locks: L,
    wanted: Arc<Wanted>,
}

impl<L: Locking> Request<L> {
    shared_options!(options);
    replica_options!(options);

    pub(crate) fn new(locks: L, keys: impl IntoKeys, mode: Mode, options: Options) -> Self {
        Self { locks, wanted: Arc::new(Wanted { keys: keys.into_keys().into(), mode, options }) }
    }

    fn options(&mut self) -> &mut Options {
        &mut Arc::make_mut(&mut self.wanted).options
    }

    /// The owner's identity, for handing the hold over and adopting it. Without it each use of the request
    /// takes 128 random bits.
    ///
    /// Two acquisitions of one key by one given token are the program's own affair: they are one hold, which
    /// either ends. Different keys are safe.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.options().token = Some(token.into());
        self
    }

    /// Waits for the lock. Requests are granted in their order of arrival; a quorum polls.
    ///
    /// When the future is dropped, it leaves neither a hold nor a request: what may be there is given up in the
    /// background.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`] when the wait ran out, or when the server did not answer for `retry_for`, or for
    /// `retry_wait_for` once the request waits. All others but [`Error::Lost`].
    pub async fn acquire(&self) -> Result<L::Hold, Error> {
        let hold = self.locks.ask(self.wanted.clone(), false).await?;
        hold.ok_or_else(|| Error::TimedOut { keys: self.wanted.keys.clone(), source: None })
    }

    /// Asks once, and gives nothing when others have the lock or wait for it.
    ///
    /// Dropping the future leaves nothing behind, as with [`Request::acquire`].
    ///
    /// # Errors
    ///
    /// As [`Request::acquire`]. After a connection error the request is sent again for `retry_for`.
    pub async fn try_acquire(&self) -> Result<Option<L::Hold>, Error> {
        self.locks.ask(self.wanted.clone(), true).await
    }

    /// Acquires the lock, runs the work, and releases. The work is dropped at its next `.await` when the hold
    /// is lost meanwhile. It gets a view of the hold, with its fence.
    ///
    /// # Errors
    ///
    /// Those of [`Request::acquire`], and [`Error::Lost`] when the hold was lost before the work was done. A
    /// release that fails is no error: it goes on in the background, and the lock ends by its ttl.
    pub async fn run<T, F>(&self, work: impl FnOnce(<L::Hold as Holding>::View) -> F) -> Result<T, Error>
    where
        F: Future<Output = T>,
    {
        let hold = self.acquire().await?;
        let view = hold.view();
        let result = view.run(work(hold.view())).await;
        let released = hold.release().await;
        let result = result?;
        match released {
            // The validity ended just now, or the hold was taken away after its last renewal.
            Ok(false) => Err(view.lost_error(view.lost_reason().unwrap_or(Reason::Gone))),
            Ok(true) | Err(_) => Ok(result),
        }
    }

    /// A hold from what the token of this request holds already: another process took it and handed the token
    /// over. It never takes the lock anew. Dropping the future releases nothing.
    ///
    /// # Errors
    ///
    /// [`Error::NotHeld`] when the token does not hold all the keys in this mode, or the request was given no
    /// token. For a quorum [`Error::QuorumMissed`] when too few servers answered to know.
    pub async fn adopt(&self) -> Result<L::Hold, Error> {
        let token = self.wanted.options.token.clone().ok_or(Error::NotHeld)?;
        self.locks.take_over(self.wanted.clone(), token).await
    }
}

/// What `Locks` and `Quorum` are made with.
pub(crate) struct Settings {
    pub(crate) defaults: Options,
    pub(crate) retry_for: Duration,
    pub(crate) retry_wait_for: Duration,
    pub(crate) hooks: Option<Box<dyn Hooks>>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            defaults: Options::default(),
            retry_for: Duration::from_secs(3),
            retry_wait_for: Duration::from_secs(60),
            hooks: None,
        }
    }
}

/// The options of `Locks` and `Quorum` themselves.
macro_rules! maker_options {
    () => {
        /// How long a call goes on without an answer: 3 s unless it is set. For a quorum, while too few
        /// servers answer.
        pub fn retry_for(mut self, retry_for: std::time::Duration) -> Self {
            self.settings.retry_for = retry_for.min($crate::options::LONGEST);
            self
        }

        /// How long a request that waits goes on while the server cannot be reached. 60 s unless it is set.
        pub fn retry_wait_for(mut self, retry_wait_for: std::time::Duration) -> Self {
            self.settings.retry_wait_for = retry_wait_for.min($crate::options::LONGEST);
            self
        }

        /// Hooks for metrics and traces.
        pub fn hooks(mut self, hooks: impl $crate::Hooks) -> Self {
            self.settings.hooks = Some(Box::new(hooks));
            self
        }

        fn options(&mut self) -> &mut $crate::options::Options {
            &mut self.settings.defaults
        }
    };
}

/// The requests of `Locks` and `Quorum`.
macro_rules! requests {
    ($hold:ty) => {
        /// A request to be the only holder of the key, or of all the keys.
        pub fn write(&self, keys: impl $crate::IntoKeys) -> $crate::Request<Self> {
            self.request(keys, $crate::options::Mode::Write)
        }

        /// A request to share the key, or all the keys, with other readers.
        pub fn read(&self, keys: impl $crate::IntoKeys) -> $crate::Request<Self> {
            self.request(keys, $crate::options::Mode::Read)
        }

        /// A request in the mode that is given.
        pub fn request(&self, keys: impl $crate::IntoKeys, mode: $crate::Mode) -> $crate::Request<Self> {
            $crate::request::Request::new(self.clone(), keys, mode, self.defaults.clone())
        }

        /// A hold of what another process took and handed over: as
        /// [`Request::adopt`](crate::Request::adopt), with the options of these locks.
        ///
        /// # Errors
        ///
        /// Those of [`Request::adopt`](crate::Request::adopt).
        pub async fn adopt(
            &self,
            keys: impl $crate::IntoKeys,
            token: impl Into<String>,
            mode: $crate::Mode,
        ) -> Result<$hold, $crate::Error> {
            self.request(keys, mode).token(token).adopt().await
        }
    };
}

/// What the holds of single servers and of quorums have in common: a hold shows its view, a view what is held.
macro_rules! holds {
    ($hold:ty, $view:ty, $debug:ident) => {
        impl $crate::Holding for $hold {
            type View = $view;

            async fn extend(&self, ttl: std::time::Duration) -> Result<(), $crate::Error> {
                <$view>::extend(self, ttl).await
            }

            async fn release(self) -> Result<bool, $crate::Error> {
                self.release().await
            }

            fn hand_over(self) -> Result<(), $crate::Error> {
                self.hand_over()
            }
        }

        impl std::ops::Deref for $hold {
            type Target = $view;

            fn deref(&self) -> &$view {
                &self.view
            }
        }

        impl std::ops::Deref for $view {
            type Target = $crate::Held;

            fn deref(&self) -> &$crate::Held {
                &self.core.held
            }
        }

        impl std::fmt::Debug for $hold {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.view.fmt(f)
            }
        }

        impl std::fmt::Debug for $view {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($hold))
                    .field("keys", &self.keys())
                    .field("mode", &self.mode())
                    .field(stringify!($debug), &self.$debug())
                    .field("valid_until", &self.valid_until())
                    .finish_non_exhaustive()
            }
        }
    };
}

/// The rest of `Locking`, by the methods of the same names.
macro_rules! locking {
    () => {
        fn request(&self, keys: impl $crate::IntoKeys, mode: $crate::Mode) -> $crate::Request<Self> {
            self.request(keys, mode)
        }

        async fn release(
            &self,
            keys: impl $crate::IntoKeys + Send,
            token: impl Into<String> + Send,
        ) -> Result<usize, $crate::Error> {
            self.release(keys, token).await
        }

        async fn close(&self) {
            self.close().await;
        }
    };
}

pub(crate) use {holds, locking, maker_options, requests};
