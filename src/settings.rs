// SPDX-License-Identifier: MIT OR Apache-2.0

//! The settings: their names, defaults and bounds. Their values are in `state`.

use std::ffi::CStr;

use crate::runtime::{Runtime, notice};
use crate::server::{self, Ctx, Setting, SettingKind};
use crate::shared::Number;
use crate::state::{STATE, TTL_MAX_MS};

fn settings_changed() {
    notice(Runtime::apply_settings);
}

/// How long a hold may last, what `WAIT` may cost in memory, how careful to be after a crash, and whether ordinary
/// clients may use `SLOCK.APPLY`.
static SETTINGS: [Setting; 5] = [
    integer(c"max-ttl-ms", 1, TTL_MAX_MS, 86_400_000, &STATE.settings.max_ttl_ms),
    integer(c"max-waiters", 0, 10_000_000, 100_000, &STATE.settings.max_waiters),
    integer(c"max-waiters-per-user", 0, 10_000_000, 0, &STATE.settings.max_waiters_per_user),
    integer(c"restart-grace-ms", 0, 86_400_000, 0, &STATE.settings.restart_grace_ms),
    Setting {
        name: c"allow-apply",
        kind: SettingKind::Switch,
        default: 0,
        value: &STATE.settings.allow_apply,
        changed: settings_changed,
    },
];

const fn integer(name: &'static CStr, min: i64, max: i64, default: i64, value: &'static Number) -> Setting {
    Setting { name, kind: SettingKind::Integer { min, max }, default, value, changed: settings_changed }
}

/// Registers the settings, with what the `loadmodule` line says: pairs of name and value, the name
/// with or without `slock.`.
///
/// # Errors
/// One line that says what is wrong with the arguments.
pub fn register(ctx: Ctx<'_>, arguments: &[&[u8]]) -> Result<(), String> {
    let given: Vec<(&CStr, i64)> = arguments.chunks(2).map(parse_pair).collect::<Result<_, _>>()?;
    for setting in &SETTINGS {
        let given = given.iter().rev().find(|(name, _)| *name == setting.name);
        let default = given.map_or(setting.default, |(_, value)| *value);
        if !server::register_setting(ctx, setting, default) {
            return Err(format!("the server refused the setting slock.{}", setting.name.to_string_lossy()));
        }
    }
    let refused = || "a slock.* line of the configuration is not acceptable".into();
    server::load_configs(ctx).then_some(()).ok_or_else(refused)
}

fn parse_pair(pair: &[&[u8]]) -> Result<(&'static CStr, i64), String> {
    let shown = |bytes: &[u8]| bytes.escape_ascii().to_string();
    let name = pair[0].to_ascii_lowercase();
    let name = name.strip_prefix(b"slock.").unwrap_or(&name);
    let setting = SETTINGS.iter().find(|setting| setting.name.to_bytes() == name);
    let setting = setting.ok_or_else(|| format!("there is no setting {}", shown(pair[0])))?;
    let value = pair.get(1).ok_or_else(|| format!("the setting {} has no value", shown(pair[0])))?;
    let (number, allowed) = match setting.kind {
        SettingKind::Integer { min, max } => {
            let number = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
            let number = number.filter(|number| (min..=max).contains(number));
            (number, format!("an integer from {min} to {max}"))
        }
        SettingKind::Switch => {
            let words: [&[u8]; 2] = [b"no", b"yes"];
            let at = words.iter().position(|word| word.eq_ignore_ascii_case(value));
            (at.map(|at| at as i64), "yes or no".into())
        }
    };
    let name = setting.name;
    number
        .map(|number| (name, number))
        .ok_or_else(|| format!("slock.{} must be {allowed}, not {}", name.to_string_lossy(), shown(value)))
}
