use super::*;

#[test]
fn slots_are_those_of_the_cluster_specification() {
    assert_eq!(slot("123456789"), 0x31C3);
    assert_eq!(slot("{user1000}.following"), slot("{user1000}.followers"));
    assert_eq!(hash_tag("foo{}{bar}"), "foo{}{bar}");
    assert_eq!(slot("foo{{bar}}zap"), slot("{bar"));
}

#[test]
fn a_tag_gives_the_slot_of_the_key() {
    for key in ["job", "{job:42}:lock", "foo{}{bar}", "foo{{bar}}zap", "a}b", "", &"long".repeat(99)] {
        let name = format!("{{{}}}.waits:1", tag_for(key));
        assert_eq!(slot(&name), slot(key), "{key}");
    }
    assert_eq!(tag_for("{job:42}:lock"), "job:42");
}
