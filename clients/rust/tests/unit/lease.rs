use super::*;
use crate::options::Options;

const TTL: Duration = Duration::from_secs(10);

fn lease(now: Moment) -> Lease {
    lease_of(now, Options { ttl: TTL, ..Options::default() })
}

fn lease_of(now: Moment, options: Options) -> Lease {
    let wanted = Wanted { keys: ["k".to_owned()].into(), mode: Mode::Write, options };
    Lease::new(Granted { fence: 7, sent: now, in_doubt: false }, &wanted, validity(TTL))
}

#[test]
fn a_thousandth_and_a_millisecond_do_not_count() {
    assert_eq!(validity(TTL), Duration::from_millis(9989));
    assert_eq!(validity(Duration::from_millis(1)), Duration::ZERO);
}

#[test]
fn it_ends_with_its_validity_for_good() {
    let now = Moment::now();
    let mut lease = lease(now);
    lease.look(now.after(Duration::from_millis(9988)));
    assert_eq!(lease.phase, Phase::Held);
    lease.look(now.after(Duration::from_millis(9989)));
    assert_eq!(lease.phase, Phase::Lost(Reason::Expired));
    lease.extended(7, TTL, now.after(2 * TTL));
    lease.lose(Reason::Gone);
    assert!(!lease.release());
    assert_eq!(lease.phase, Phase::Lost(Reason::Expired));
}

#[test]
fn no_extension_shortens() {
    let now = Moment::now();
    let mut lease = lease(now);
    lease.extended(7, TTL / 2, now.after(TTL / 2));
    assert_eq!((lease.end(), lease.ttl), (now.after(validity(TTL)), TTL));
    lease.extended(7, 2 * TTL, now.after(2 * TTL));
    assert_eq!((lease.end(), lease.ttl), (now.after(2 * TTL), 2 * TTL));
}

#[test]
fn an_answer_counts_for_the_fence_that_it_names() {
    let now = Moment::now();
    let mut lease = lease(now);
    lease.changed(Granted { fence: 8, sent: now, in_doubt: false }, Mode::Read, Duration::ZERO);
    lease.extended(7, TTL, now.after(2 * TTL));
    lease.gone(7);
    assert_eq!((lease.phase, lease.end()), (Phase::Held, now.after(validity(TTL))));
    lease.gone(8);
    assert_eq!(lease.phase, Phase::Lost(Reason::Gone));
}

#[test]
fn nothing_is_gone_while_a_change_of_mode_is_open() {
    let now = Moment::now();
    let mut lease = lease(now);
    lease.change(Mode::Read);
    lease.gone(7);
    assert_eq!(lease.phase, Phase::Held);
    lease.unchanged();
    lease.gone(7);
    assert_eq!(lease.phase, Phase::Lost(Reason::Gone));
}

#[test]
fn the_longest_lease_ends_a_hold_that_is_renewed() {
    let now = Moment::now();
    let options = Options { ttl: TTL, longest_lease: Some(TTL / 2), ..Options::default() };
    let mut lease = lease_of(now, options);
    lease.error = Some(Error::Closed);
    lease.extended(7, TTL, now.after(TTL));
    lease.look(now.after(TTL / 2));
    assert_eq!(lease.phase, Phase::Lost(Reason::LeaseEnded));
    assert!(lease.cause(Reason::LeaseEnded).is_none());
}

#[test]
fn renewals_leave_time_for_another() {
    let now = Moment::now();
    let mut lease = lease(now);
    assert_eq!(lease.next_renewal(now), TTL / 3);
    lease.error = Some(Error::Closed);
    assert_eq!(lease.next_renewal(now), TTL / 10);
    assert!(lease.next_renewal(now.after(TTL * 99 / 100)) < TTL / 100);
}

#[test]
fn nothing_is_lost_after_the_release() {
    let now = Moment::now();
    let mut lease = lease(now);
    assert!(lease.release());
    lease.gone(7);
    lease.look(now.after(2 * TTL));
    assert_eq!(lease.phase, Phase::Released);
}
