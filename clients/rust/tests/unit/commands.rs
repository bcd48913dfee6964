use super::*;
use crate::options::Options;

fn words(packed: Vec<u8>) -> String {
    let packed = String::from_utf8(packed).unwrap();
    let lines: Vec<_> = packed.split("\r\n").collect();
    let mut words = Vec::new();
    let mut at = 0;
    while at + 1 < lines.len() {
        let count: usize = lines[at].strip_prefix('*').unwrap().parse().unwrap();
        let command: Vec<_> = (0..count).map(|word| lines[at + 2 + 2 * word]).collect();
        words.push(command.join(" "));
        at += 1 + 2 * count;
    }
    words.join("; ")
}

fn text(command: &Cmd) -> String {
    words(command.get_packed_command())
}

fn texts(commands: &[Cmd]) -> String {
    words(commands.iter().flat_map(Cmd::get_packed_command).collect())
}

fn owner(keys: &[&str], given: bool) -> Owner {
    of(keys, Options { token: given.then(|| "t".into()), ..Options::default() })
}

fn of(keys: &[&str], options: Options) -> Owner {
    let keys = keys.iter().map(|key| key.to_string()).collect();
    Owner { wanted: Arc::new(Wanted { keys, mode: Mode::Read, options }), token: "t".into() }
}

const TTL: Duration = Duration::from_millis(5);

#[test]
fn one_key_and_several() {
    let (one, two) = (owner(&["a"], false), owner(&["a", "b"], false));
    assert_eq!(text(&extend(&one, TTL, 7)), "SLOCK.EXTEND a t 5 GT FENCE 7");
    assert_eq!(text(&extend(&two, TTL, 7)), "SLOCK.MEXTEND 2 a b t 5 GT FENCE 7");
    assert_eq!(text(&release(&one, Mode::Read, 7)), "SLOCK.RUNLOCK a t FENCE 7");
    assert_eq!(text(&release(&two, Mode::Read, 7)), "SLOCK.MUNLOCK 2 a b t FENCE 7");
    assert_eq!(text(&held_fence(&two, Mode::Write, TTL)), "SLOCK.MLOCK 2 a b t 5 XX");
    assert_eq!(text(&change(Mode::Read, &one, TTL, 7)), "SLOCK.DOWNGRADE a t 5 FENCE 7");
}

#[test]
fn options_follow_the_ttl() {
    let options = Options { ttl: TTL, limit: Some(3), metadata: Some("m".into()), ..Options::default() };
    let one = of(&["a"], options);
    let asked = acquire(&one);
    let notified = waiting(&asked, Some(Duration::from_micros(1)), Some(("c", 7)));
    assert_eq!(text(&asked), "SLOCK.RLOCK a t 5 META m LIMIT 3");
    assert_eq!(text(&notified), "SLOCK.RLOCK a t 5 META m LIMIT 3 WAIT 1 NOTIFY c 7");
    let upgrade = waiting(&change(Mode::Write, &one, TTL, 9), None, None);
    assert_eq!(text(&upgrade), "SLOCK.UPGRADE a t 5 FENCE 9 WAIT 0");
}

#[test]
fn giving_up_refuses_what_comes_late_but_for_a_token_of_the_program() {
    assert_eq!(texts(&end(&owner(&["a"], false), 9)), "SLOCK.CANCEL a t REFUSE 120000; SLOCK.MUNLOCK 1 a t");
    assert_eq!(
        texts(&end(&owner(&["a", "b"], false), 9)),
        "SLOCK.CANCEL a t REFUSE 120000; SLOCK.CANCEL b t REFUSE 120000; SLOCK.MUNLOCK 2 a b t"
    );
    assert_eq!(
        texts(&end(&owner(&["a"], true), 9)),
        "SLOCK.CANCEL a t; SLOCK.LOCK a t 1 XX; SLOCK.RLOCK a t 1 XX; SLOCK.MUNLOCK 1 a t FENCE 9"
    );
}

#[test]
fn durations_are_rounded_up() {
    assert_eq!(milliseconds(Duration::ZERO), 1);
    assert_eq!(milliseconds(Duration::from_micros(1500)), 2);
    assert_eq!(milliseconds(Duration::MAX), u64::MAX);
}
