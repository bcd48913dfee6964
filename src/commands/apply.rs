//! `APPLY`: what replicas and the log see. Not for applications. The form is described in
//! `replication::wire`.

use super::args::Args;
use crate::replication;
use crate::server::{Ctx, Reply, Str};

pub fn apply(ctx: Ctx<'_>, args: &[Str<'_>]) -> Result<Reply, Reply> {
    let mut args = Args::new(args, 2, 3)?;
    let key = args.key()?[0];
    let mut bytes = || args.next().map_or(&[][..], Str::bytes);
    replication::apply(ctx, key, bytes(), bytes())?;
    Ok(Reply::Int(1))
}
