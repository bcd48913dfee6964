//! One of several processes leads. Here two candidates in one process take turns.
//!
//! Run it with a server that has the module at `REDIS_URL`, or on port 6379:
//!
//! ```text
//! cargo run --example leader_election
//! ```

use std::time::Duration;

use redis::Client;
use slock_client::{Error, Hold, Locks};

/// Leads whenever no other process does, until the work is done. The work is dropped if the leadership is lost: then another
/// process may lead already.
async fn campaign<T>(locks: &Locks, lead: impl AsyncFn(&Hold) -> T) -> Result<T, Error> {
    loop {
        match locks.write("example:leader").run(async |hold| lead(&hold).await).await {
            Err(error @ (Error::Lost { .. } | Error::NoAnswer { .. })) => eprintln!("{error}"), // and try again
            result => return result,
        }
    }
}

async fn candidate(name: &str) -> Result<(), Error> {
    let url = std::env::var("REDIS_URL").unwrap_or("redis://127.0.0.1:6379/".into());
    let locks = Locks::builder(Client::open(url)?).metadata(name).build();
    let lead = async |_: &Hold| {
        println!("candidate {name} leads");
        tokio::time::sleep(Duration::from_millis(100)).await;
        println!("candidate {name} steps down");
    };
    campaign(&locks, lead).await?;
    locks.close().await;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    tokio::try_join!(candidate("one"), candidate("two"))?;
    Ok(())
}
