//! What befalls a key outside of the manager, and what that means for those who wait for it.

use super::memory_store::MemoryStore;
use super::parts::WRITE;
use super::scene::Scene;
use crate::error::LockError;
use crate::ids::LockId;

#[test]
fn what_befalls_a_key_lets_in_the_next_or_sends_everybody_away() {
    type Befalls = fn(&mut MemoryStore, &LockId);
    let away: Befalls = |store, id| store.set_served(id, false);
    let cases: [(Befalls, [&str; 2], Option<LockError>); 3] = [
        (MemoryStore::delete, ["B granted", "C granted"], None),
        (MemoryStore::replace_by_other_type, ["B WrongType", "C WrongType"], Some(LockError::WrongType)),
        (away, ["B NotServed", "C NotServed"], Some(LockError::NotServed)),
    ];
    for (befalls, news, error) in cases {
        let mut scene = Scene::after("A writes a; B C wait to read a");
        scene.happens("a", befalls);
        assert_eq!(scene.news(), news);
        if let Some(error) = error {
            assert_eq!(scene.is_refused("a", "D", WRITE), error);
        }
        assert!(scene.manager.waitlist().is_empty());
    }
}
