//! Random numbers from a seed, so that a failing history can be run again by its number.

/// The SplitMix64 generator (G. Steele, D. Lea, C. Flood, 2014).
pub(super) struct Random {
    state: u64,
}

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self { state: seed.wrapping_mul(0xd134_2543_de82_ef95) }
    }

    pub(super) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 to `bound` - 1.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// A number from `low` to `high`, both included.
    pub(super) fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    pub(super) fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    pub(super) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// Up to `most` different numbers below `bound`, at least one, in random order.
    pub(super) fn some_of(&mut self, bound: usize, most: usize) -> Vec<usize> {
        let mut all: Vec<usize> = (0..bound).collect();
        for at in (1..bound).rev() {
            all.swap(at, self.below(at + 1));
        }
        all.truncate(1 + self.below(most.min(bound)));
        all
    }
}

/// How many rounds a random test plays: few under Miri, which is some thousand times slower.
pub(super) const fn rounds(full: usize) -> usize {
    if cfg!(miri) { full.div_ceil(3_000) } else { full }
}
