// SPDX-License-Identifier: MIT OR Apache-2.0

//! The commands: one table, and one file a family.
//!
//! | file | commands |
//! |---|---|
//! | `locking` | `LOCK`, `RLOCK`, `UPGRADE`, `MLOCK`, `MRLOCK`: whatever may have to wait |
//! | `holding` | `UNLOCK`, `RUNLOCK`, `EXTEND`, `DOWNGRADE`, `MUNLOCK`, `MEXTEND`: what a holder does |
//! | `inspect` | `PTTL`, `MPTTL`, `CHECK`, `INFO`: what only looks |
//! | `queue` | `QUEUES`, `CANCEL`: what concerns those who wait |
//! | `apply` | `APPLY`: what a replica runs, and a server that loads its log |
//! | `args` | reading arguments, and the errors that name them |

mod apply;
mod args;
mod holding;
mod inspect;
mod locking;
mod queue;

use std::ffi::CStr;

use crate::server::{Arg, ArgKind, COMMANDS_MAX, Command};

const _: () = assert!(COMMANDS.len() <= COMMANDS_MAX);

/// All that `COMMAND` shows of each, and what runs it.
pub const COMMANDS: &[Command] = &[
    Command {
        name: c"slock.lock",
        flags: c"write deny-oom blocking fast",
        summary: c"Takes a lock for write, or waits for it.",
        complexity: COMPLEXITY_WAIT,
        args: &[KEY, TOKEN, TTL_MS, WAIT, META, EPHEMERAL, XX],
        run: locking::lock,
    },
    Command {
        name: c"slock.rlock",
        flags: c"write deny-oom blocking fast",
        summary: c"Takes a lock for read, beside other readers, or waits for it.",
        complexity: COMPLEXITY_WAIT,
        args: &[KEY, TOKEN, TTL_MS, WAIT, META, LIMIT, EPHEMERAL, XX],
        run: locking::rlock,
    },
    Command {
        name: c"slock.upgrade",
        flags: c"write deny-oom blocking fast",
        summary: c"Turns a reader into the writer in one step, or waits until the other readers have gone.",
        complexity: COMPLEXITY_WAIT,
        args: &[KEY, TOKEN, TTL_MS, WAIT, FENCE],
        run: locking::upgrade,
    },
    Command {
        name: c"slock.mlock",
        flags: c"write deny-oom blocking",
        summary: c"Takes several locks for write, all or none, or waits for them.",
        complexity: COMPLEXITY_MANY_WAIT,
        args: &[NUMKEYS, KEYS, TOKEN, TTL_MS, WAIT, META, EPHEMERAL, XX],
        run: locking::mlock,
    },
    Command {
        name: c"slock.mrlock",
        flags: c"write deny-oom blocking",
        summary: c"Takes several locks for read, all or none, or waits for them.",
        complexity: COMPLEXITY_MANY_WAIT,
        args: &[NUMKEYS, KEYS, TOKEN, TTL_MS, WAIT, META, LIMIT, EPHEMERAL, XX],
        run: locking::mrlock,
    },
    Command {
        name: c"slock.unlock",
        flags: c"write fast",
        summary: c"Releases a lock held for write.",
        complexity: COMPLEXITY,
        args: &[KEY, TOKEN, FENCE],
        run: holding::unlock,
    },
    Command {
        name: c"slock.runlock",
        flags: c"write fast",
        summary: c"Releases a lock held for read.",
        complexity: COMPLEXITY,
        args: &[KEY, TOKEN, FENCE],
        run: holding::runlock,
    },
    Command {
        name: c"slock.extend",
        flags: c"write fast",
        summary: c"Sets the deadline of a hold to now + ttl.",
        complexity: COMPLEXITY,
        args: &[KEY, TOKEN, TTL_MS, GT, FENCE],
        run: holding::extend,
    },
    Command {
        name: c"slock.mextend",
        flags: c"write",
        summary: c"Sets the deadlines of several holds to now + ttl, of all or of none.",
        complexity: COMPLEXITY_MANY,
        args: &[NUMKEYS, KEYS, TOKEN, TTL_MS, GT, FENCE],
        run: holding::mextend,
    },
    Command {
        name: c"slock.downgrade",
        flags: c"write fast",
        summary: c"Turns the writer into a reader in one step, with no writer in between.",
        complexity: COMPLEXITY,
        args: &[KEY, TOKEN, TTL_MS, FENCE],
        run: holding::downgrade,
    },
    Command {
        name: c"slock.munlock",
        flags: c"write",
        summary: c"Releases locks, in whichever mode the token holds them. With REFUSE, ends the whole acquisition.",
        complexity: COMPLEXITY_END,
        args: &[NUMKEYS, KEYS, TOKEN, FENCE, REFUSE, REASON],
        run: holding::munlock,
    },
    Command {
        name: c"slock.pttl",
        flags: c"readonly fast",
        summary: c"Returns how many milliseconds a holder has left.",
        complexity: c"O(1)",
        args: &[KEY, TOKEN],
        run: inspect::pttl,
    },
    Command {
        name: c"slock.mpttl",
        flags: c"readonly",
        summary: c"Returns the least number of milliseconds that a holder of several locks has left.",
        complexity: c"O(K), K being the number of keys",
        args: &[NUMKEYS, KEYS, TOKEN],
        run: inspect::mpttl,
    },
    Command {
        name: c"slock.check",
        flags: c"readonly fast",
        summary: c"Tells whether a live holder of the lock has this fence.",
        complexity: c"O(log(N)), N being the number of readers",
        args: &[KEY, arg(c"fence", ArgKind::Integer)],
        run: inspect::check,
    },
    Command {
        name: c"slock.info",
        flags: c"readonly",
        summary: c"Shows who holds a lock and who waits for it.",
        complexity: c"O(log(N)), N being the number of holders and of waiting requests; with FULL O(N)",
        args: &[KEY, FULL],
        run: inspect::info,
    },
    Command {
        name: c"slock.queues",
        flags: c"readonly deny-script",
        summary: c"Lists the locks of this database that are waited for, the longest wait first, from a cursor on.",
        complexity: c"O(log(M)+N) for every call, M being the number of locks that are waited for, N that of locks shown or \
                      hidden from the user, 1,000 at most",
        args: &[COUNT, CURSOR],
        run: queue::queues,
    },
    Command {
        name: c"slock.cancel",
        flags: c"fast",
        summary: c"Cancels the waiting requests of a token for a lock, from any connection.",
        complexity: c"O(P*log(N)), P being the queues in which these requests wait (1,024 for each user at most), N the number of waiting requests",
        args: &[KEY, TOKEN],
        run: queue::cancel,
    },
    Command {
        name: c"slock.apply",
        flags: c"write admin",
        summary: c"Internal: applies a change that the primary decided. Not for applications.",
        complexity: c"O(log(N)), N being the number of readers",
        args: &[
            KEY,
            arg(c"change", ArgKind::String),
            Arg { name: c"meta", kind: ArgKind::String, word: None, optional: true },
        ],
        run: apply::apply,
    },
];

const COMPLEXITY: &CStr = c"O(log(N)), N being the number of readers and of waiting requests";
const COMPLEXITY_MANY: &CStr =
    c"O(K*log(N)), K being the number of keys, N that of readers and of waiting requests";
const COMPLEXITY_END: &CStr =
    c"O(K*log(N)), K being the number of keys, N that of readers and of waiting requests; with REFUSE O(P*log(N)) more, \
      P being the queues in which requests of the token for these keys wait (1,024 for each user at most)";
const COMPLEXITY_WAIT: &CStr =
    c"O(log(N)), N being the number of readers and of waiting requests; to wait O(M) more, \
      M being the keys of waiting requests that ask for several or share a token";
const COMPLEXITY_MANY_WAIT: &CStr =
    c"O(K*log(N)), K being the number of keys, N that of readers and of waiting requests; to wait O(M) more, \
      M being the keys of waiting requests that ask for several or share a token";

const fn arg(name: &'static CStr, kind: ArgKind) -> Arg {
    Arg { name, kind, word: None, optional: false }
}

const fn option(word: &'static CStr, name: &'static CStr, kind: ArgKind) -> Arg {
    Arg { name, kind, word: Some(word), optional: true }
}

const KEY: Arg = arg(c"key", ArgKind::Key);
const NUMKEYS: Arg = arg(c"numkeys", ArgKind::Integer);
const KEYS: Arg = arg(c"key", ArgKind::Keys);
const TOKEN: Arg = arg(c"token", ArgKind::String);
const TTL_MS: Arg = arg(c"ttl-ms", ArgKind::Integer);
const WAIT: Arg = Arg {
    name: c"wait",
    kind: ArgKind::Block(&[
        Arg { name: c"wait-ms", kind: ArgKind::Integer, word: Some(c"WAIT"), optional: false },
        Arg {
            name: c"notify",
            kind: ArgKind::Block(&[arg(c"channel", ArgKind::String), arg(c"tag", ArgKind::String)]),
            word: Some(c"NOTIFY"),
            optional: true,
        },
    ]),
    word: None,
    optional: true,
};
const META: Arg = option(c"META", c"data", ArgKind::String);
const LIMIT: Arg = option(c"LIMIT", c"n", ArgKind::Integer);
const EPHEMERAL: Arg = option(c"EPHEMERAL", c"ephemeral", ArgKind::Word);
const XX: Arg = option(c"XX", c"xx", ArgKind::Word);
const GT: Arg = option(c"GT", c"gt", ArgKind::Word);
const FENCE: Arg = option(c"FENCE", c"fence", ArgKind::Integer);
const REFUSE: Arg = option(c"REFUSE", c"refuse-ms", ArgKind::Integer);
const REASON: Arg = option(c"REASON", c"text", ArgKind::String);

const COUNT: Arg = option(c"COUNT", c"count", ArgKind::Integer);
const CURSOR: Arg = option(c"CURSOR", c"cursor", ArgKind::Integer);

const FULL: Arg = Arg {
    name: c"full",
    kind: ArgKind::Block(&[
        Arg { name: c"full", kind: ArgKind::Word, word: Some(c"FULL"), optional: false },
        COUNT,
    ]),
    word: None,
    optional: true,
};
