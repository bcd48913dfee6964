//! The first program of the page.

use slock_client::{Error, Locks, redis};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::var("REDIS_URL").unwrap_or("redis://localhost:6379/".into());
    let locks = Locks::new(redis::Client::open(url)?);

    let report = locks.write("report");
    let work = async |_hold| {
        println!("nobody else writes the report"); // dropped at an .await if the lock is lost
    };
    report.run(work).await?;

    locks.close().await;
    Ok(())
}
