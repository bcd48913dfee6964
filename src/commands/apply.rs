//! `APPLY`: what replicas and the log see. Not for applications. The form is described in
//! `replication::wire`.

use super::args::Args;
use crate::replication;
use crate::server::{Ctx, Reply, Str};

pub fn apply(ctx: Ctx<'_>, args: &[Str<'_>]) -> Result<Reply, Reply> {
    let mut args = Args::new(args);
    let key = args.key()?[0];
    let mut bytes = || args.next().map_or(&[][..], Str::bytes);
    let (change, meta) = (bytes(), bytes());
    if args.next().is_some() {
        return Err(Reply::WrongArity);
    }
    replication::apply(ctx, key, change, meta)?;
    Ok(Reply::Int(1))
}
