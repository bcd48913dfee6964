use super::*;

const MS: Duration = Duration::from_millis(1);

#[test]
fn none_never_asks_again() {
    assert_eq!(Poll::none().pause(0), None);
}

#[test]
fn a_limit_counts_further_attempts() {
    let poll = Poll::constant(MS).limit(2);
    assert_eq!([poll.pause(0), poll.pause(1), poll.pause(2)], [Some(MS), Some(MS), None]);
}

#[test]
fn exponential_pauses_grow_up_to_the_most() {
    let poll = Poll::exponential(MS, 8 * MS);
    for (number, most) in [(0, 1), (1, 2), (2, 4), (3, 8), (4, 8), (100, 8)] {
        let pause = poll.pause(number).unwrap();
        assert!(pause >= most * MS / 2 && pause <= most * MS, "{number}: {pause:?}");
    }
}

#[test]
fn pauses_after_errors_double_up_to_a_second() {
    let pauses: Vec<_> = (0..12).map(after_error).collect();
    assert!(pauses[0] >= 5 * MS && pauses[0] <= 10 * MS);
    assert!(pauses.iter().all(|pause| *pause <= 1000 * MS));
    assert!(pauses[11] >= 500 * MS);
}
