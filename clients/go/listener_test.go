package slock

import "testing"

// Channels of a cluster are kept by slot: two slots that were taken for one would share a channel that is in one of them.
func TestSlotIsThatOfACluster(t *testing.T) {
	for place, slot := range map[string]uint16{"": 0, "123456789": 12739, "foo": 12182, "user1000": 3443} {
		if got := slotOf(place); got != slot {
			t.Errorf("%q: %d, not %d", place, got, slot)
		}
	}
}
