//! The channels on which waiting requests are answered.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use slock_core::ChannelId;

use crate::server::OwnedString;

/// Their names and numbers. A channel that nobody listened to and that is used again has another number.
#[derive(Default)]
pub struct Channels {
    ids: BTreeMap<Box<[u8]>, ChannelId>,
    names: BTreeMap<ChannelId, OwnedString>,
    last: u32,
}

impl Channels {
    /// The number of this channel.
    pub fn id_of(&mut self, name: &[u8]) -> ChannelId {
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        self.last = self.last.checked_add(1).unwrap_or(1);
        let id = ChannelId(NonZeroU32::new(self.last).unwrap_or(NonZeroU32::MIN));
        self.ids.insert(name.into(), id);
        self.names.insert(id, OwnedString::new(name));
        id
    }

    /// The channel with this number.
    pub fn name_of(&self, id: ChannelId) -> Option<&OwnedString> {
        self.names.get(&id)
    }

    /// The channel is not used any more, or nobody listens to it.
    pub fn forget(&mut self, id: ChannelId) {
        if let Some(name) = self.names.remove(&id) {
            self.ids.remove(name.as_str().bytes());
        }
    }
}
