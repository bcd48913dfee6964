// SPDX-License-Identifier: MIT OR Apache-2.0

//! `slock acquire`, `extend` and `release`: a lock over several steps of a job, by its owner token.

use std::io::Write;
use std::time::Duration;

use serde_json::json;
use slock_client::redis::{Value, cmd};

use crate::address::Place;
use crate::args::Acquire;
use crate::change::answer;
use crate::failure::{Failure, NO, UNAVAILABLE};
use crate::nodes;
use crate::request::Asked;
use crate::signals::Signals;
use crate::table::{self, clean};

/// Takes the lock, prints its tokens, and leaves it to its ttl.
pub async fn acquire(place: &Place, options: &Acquire) -> Result<u8, Failure> {
    let mut signals = Signals::ending().map_err(|error| Failure::usage(error.to_string()))?;
    let locks = place.locks()?;
    let asked = Asked { place, locks: &locks, keys: &options.keys, wanted: &options.wanted };
    let obtained = asked.obtain(asked.request(options.ttl, "slock acquire"), &mut signals).await;
    let code = match obtained {
        Ok(hold) => {
            let (token, fence) = (hold.token(), hold.fence());
            let text = if options.export {
                format!("SLOCK_TOKEN={token}\nSLOCK_FENCE={fence}\n")
            } else if options.output.json {
                format!("{:#}\n", json!({"token": token, "fence": fence}))
            } else {
                format!("{token} {fence}\n")
            };
            let mut output = std::io::stdout();
            match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
                Ok(()) => {
                    let _ = hold.detach();
                    Ok(0)
                }
                // Nobody would know the token.
                Err(error) => {
                    let _ = hold.release().await;
                    let line = format!("{} is released again: {error}", asked.shown_keys());
                    Err(Failure::new(UNAVAILABLE, line))
                }
            }
        }
        Err(failure) => Err(failure),
    };
    asked.close(code.as_ref().err()).await;
    code
}

/// Lets all keys live for at least the ttl from now, or none.
pub async fn extend(
    place: &Place,
    keys: &[String],
    token: &str,
    ttl: Duration,
    as_json: bool,
) -> Result<u8, Failure> {
    let mut node = nodes::of_key(place, &keys[0]).await?;
    let names: Vec<String> = keys.iter().map(|key| place.full(key)).collect();
    let milliseconds = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
    let mut extend = cmd("SLOCK.MEXTEND");
    extend.arg(names.len()).arg(names).arg(token).arg(milliseconds).arg("GT");
    let extended = node.answer(extend).await? == Value::Int(1);
    let (shown, left) = (clean(&keys.join(", ")), table::duration(ttl));
    let yes = format!("{shown} is held for {left} more, or longer");
    answer(as_json, "extended", extended, &yes, &format!("this token does not hold {shown}"))
}

/// Releases what the token holds.
pub async fn release(place: &Place, keys: &[String], token: &str, as_json: bool) -> Result<u8, Failure> {
    let locks = place.locks()?;
    let released =
        locks.release(keys.to_vec(), token).await.map_err(|error| Failure::of(&error, &place.shown))?;
    locks.close().await;
    let shown = clean(&keys.join(", "));
    if released > 0 && released < keys.len() && !as_json {
        let all = keys.len();
        return Err(Failure::new(
            NO,
            format!("this token held {released} of {all} keys, which are released"),
        ));
    }
    let no = format!("this token does not hold {shown}");
    answer(as_json, "released", released == keys.len(), &format!("{shown} is released"), &no)
}
