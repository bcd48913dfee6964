//! The settings, each with its default and bounds.

use std::cell::Cell;
use std::ffi::CStr;

use crate::office;
use crate::server::{self, Ctx, IntSetting};

/// The longest ttl: a year.
pub const TTL_MAX_MS: i64 = 31_536_000_000;

thread_local! {
    static MAX_TTL_MS: Cell<i64> = const { Cell::new(86_400_000) };
    static MAX_WAITERS: Cell<i64> = const { Cell::new(100_000) };
    static RESTART_GRACE_MS: Cell<i64> = const { Cell::new(0) };
}

/// How long a hold may last, what `WAIT` may cost in memory, how careful to be after a crash.
static SETTINGS: [IntSetting; 3] = [
    IntSetting {
        name: c"max-ttl-ms",
        default: 86_400_000,
        min: 1,
        max: TTL_MAX_MS,
        get: || MAX_TTL_MS.get(),
        set: |value| MAX_TTL_MS.set(value),
    },
    IntSetting {
        name: c"max-waiters",
        default: 100_000,
        min: 0,
        max: 10_000_000,
        get: || MAX_WAITERS.get(),
        set: |value| {
            MAX_WAITERS.set(value);
            office::apply_settings();
        },
    },
    IntSetting {
        name: c"restart-grace-ms",
        default: 0,
        min: 0,
        max: 86_400_000,
        get: || RESTART_GRACE_MS.get(),
        set: |value| {
            RESTART_GRACE_MS.set(value);
            office::apply_settings();
        },
    },
];

/// The longest ttl that a command may ask for.
pub fn max_ttl_ms() -> i64 {
    MAX_TTL_MS.get()
}

/// How many requests may wait at a time, on the whole server.
pub fn max_waiters() -> usize {
    usize::try_from(MAX_WAITERS.get()).unwrap_or(0)
}

/// For how long after a start no new hold is given.
pub fn restart_grace_ms() -> u64 {
    RESTART_GRACE_MS.get().unsigned_abs()
}

/// Registers the settings, with what the `loadmodule` line says: pairs of name and value, the name
/// with or without `slock.`.
///
/// # Errors
/// One line that says what is wrong with the arguments.
pub fn register(ctx: Ctx<'_>, arguments: &[&[u8]]) -> Result<(), String> {
    let given = parse(arguments)?;
    for setting in &SETTINGS {
        let default = given.iter().rev().find(|(name, _)| *name == setting.name);
        let default = default.map_or(setting.default, |(_, value)| *value);
        if !server::register_int(ctx, setting, default) {
            return Err(format!("the server refused the setting slock.{}", setting.name.to_string_lossy()));
        }
    }
    if server::load_configs(ctx) {
        Ok(())
    } else {
        Err("a slock.* line of the configuration is not acceptable".into())
    }
}

fn parse(arguments: &[&[u8]]) -> Result<Vec<(&'static CStr, i64)>, String> {
    arguments.chunks(2).map(parse_pair).collect()
}

fn parse_pair(pair: &[&[u8]]) -> Result<(&'static CStr, i64), String> {
    let shown = |bytes: &[u8]| bytes.escape_ascii().to_string();
    let name = pair[0].to_ascii_lowercase();
    let name = name.strip_prefix(b"slock.").unwrap_or(&name);
    let Some(setting) = SETTINGS.iter().find(|setting| setting.name.to_bytes() == name) else {
        return Err(format!("there is no setting {}", shown(pair[0])));
    };
    let value = pair.get(1).ok_or_else(|| format!("the setting {} has no value", shown(pair[0])))?;
    let number = std::str::from_utf8(value).ok().and_then(|text| text.parse::<i64>().ok());
    number
        .filter(|number| (setting.min..=setting.max).contains(number))
        .map(|number| (setting.name, number))
        .ok_or_else(|| {
            let (value, name) = (shown(value), setting.name.to_string_lossy());
            format!("slock.{name} must be an integer from {} to {}, not {value}", setting.min, setting.max)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_name_settings_with_or_without_the_prefix() {
        let given = parse(&[b"slock.max-ttl-ms", b"5000", b"MAX-WAITERS", b"0"]).unwrap();
        assert_eq!(given, [(c"max-ttl-ms", 5000), (c"max-waiters", 0)]);
    }

    #[test]
    fn bad_arguments_are_refused_with_what_is_allowed() {
        for (arguments, told) in [
            (&[&b"max-ttl"[..], b"1"][..], "there is no setting max-ttl"),
            (&[b"max-ttl-ms"], "has no value"),
            (&[b"max-ttl-ms", b"0"], "from 1 to 31536000000, not 0"),
            (&[b"max-ttl-ms", b"ten"], "not ten"),
            (&[b"restart-grace-ms", b"-1"], "from 0 to"),
        ] {
            let error = parse(arguments).unwrap_err();
            assert!(error.contains(told), "{error}");
        }
    }
}
