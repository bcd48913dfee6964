//! The settings: their names, defaults and bounds. Their values are in `state`.

use std::ffi::CStr;

use crate::runtime::{Notice, notice};
use crate::server::{self, BoolSetting, Ctx, IntSetting};
use crate::state::{STATE, TTL_MAX_MS};

fn settings_changed() {
    notice(Notice::SettingsChanged);
}

/// How long a hold may last, what `WAIT` may cost in memory, how careful to be after a crash.
static INTEGERS: [IntSetting; 3] = [
    IntSetting {
        name: c"max-ttl-ms",
        default: 86_400_000,
        min: 1,
        max: TTL_MAX_MS,
        value: &STATE.settings.max_ttl_ms,
        changed: settings_changed,
    },
    IntSetting {
        name: c"max-waiters",
        default: 100_000,
        min: 0,
        max: 10_000_000,
        value: &STATE.settings.max_waiters,
        changed: settings_changed,
    },
    IntSetting {
        name: c"restart-grace-ms",
        default: 0,
        min: 0,
        max: 86_400_000,
        value: &STATE.settings.restart_grace_ms,
        changed: settings_changed,
    },
];

/// Whether ordinary clients may use `SLOCK.APPLY`.
static SWITCHES: [BoolSetting; 1] =
    [BoolSetting { name: c"allow-apply", default: false, value: &STATE.settings.allow_apply }];

/// What the `loadmodule` line gives to a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    Integer(i64),
    Switch(bool),
}

/// Registers the settings, with what the `loadmodule` line says: pairs of name and value, the name
/// with or without `slock.`.
///
/// # Errors
/// One line that says what is wrong with the arguments.
pub fn register(ctx: Ctx<'_>, arguments: &[&[u8]]) -> Result<(), String> {
    let given = parse(arguments)?;
    let given = |name: &CStr| given.iter().rev().find(|(of, _)| *of == name).map(|(_, value)| *value);
    let refused =
        |name: &CStr| Err(format!("the server refused the setting slock.{}", name.to_string_lossy()));
    for setting in &INTEGERS {
        let default = match given(setting.name) {
            Some(Value::Integer(value)) => value,
            _ => setting.default,
        };
        if !server::register_int(ctx, setting, default) {
            return refused(setting.name);
        }
    }
    for setting in &SWITCHES {
        let default = match given(setting.name) {
            Some(Value::Switch(value)) => value,
            _ => setting.default,
        };
        if !server::register_bool(ctx, setting, default) {
            return refused(setting.name);
        }
    }
    if server::load_configs(ctx) {
        Ok(())
    } else {
        Err("a slock.* line of the configuration is not acceptable".into())
    }
}

fn parse(arguments: &[&[u8]]) -> Result<Vec<(&'static CStr, Value)>, String> {
    arguments.chunks(2).map(parse_pair).collect()
}

fn parse_pair(pair: &[&[u8]]) -> Result<(&'static CStr, Value), String> {
    let shown = |bytes: &[u8]| bytes.escape_ascii().to_string();
    let name = pair[0].to_ascii_lowercase();
    let name = name.strip_prefix(b"slock.").unwrap_or(&name);
    let integer = INTEGERS.iter().find(|setting| setting.name.to_bytes() == name);
    let switch = SWITCHES.iter().find(|setting| setting.name.to_bytes() == name);
    let value = || pair.get(1).copied().ok_or_else(|| format!("the setting {} has no value", shown(pair[0])));
    match (integer, switch) {
        (Some(setting), _) => parse_integer(setting, value()?),
        (None, Some(setting)) => parse_switch(setting, value()?),
        (None, None) => Err(format!("there is no setting {}", shown(pair[0]))),
    }
}

fn parse_integer(setting: &'static IntSetting, value: &[u8]) -> Result<(&'static CStr, Value), String> {
    let number = std::str::from_utf8(value).ok().and_then(|text| text.parse::<i64>().ok());
    match number.filter(|number| (setting.min..=setting.max).contains(number)) {
        Some(number) => Ok((setting.name, Value::Integer(number))),
        None => Err(format!(
            "slock.{} must be an integer from {} to {}, not {}",
            setting.name.to_string_lossy(),
            setting.min,
            setting.max,
            value.escape_ascii()
        )),
    }
}

fn parse_switch(setting: &'static BoolSetting, value: &[u8]) -> Result<(&'static CStr, Value), String> {
    match value.to_ascii_lowercase().as_slice() {
        b"yes" => Ok((setting.name, Value::Switch(true))),
        b"no" => Ok((setting.name, Value::Switch(false))),
        _ => {
            let name = setting.name.to_string_lossy();
            Err(format!("slock.{name} must be yes or no, not {}", value.escape_ascii()))
        }
    }
}
