//! Ranges of memory in address order.
//!
//! A replay finds, adds and takes away a block for every few events, so this is what its speed hangs on. Addresses stand in sorted
//! groups of at most [`GROUP`], which a processor searches and shifts within a few cache lines; the ranges themselves stay where they
//! are put. With 200 and with 20,000 live blocks an insertion and its removal take 22 and 38 ns, in the standard library's B-tree 58
//! and 122 (`cargo bench -p vramscope-trace --bench address_map`).

use std::fmt;

/// Addresses of a full group. Larger ones shift more, smaller ones make more groups to search.
const GROUP: usize = 64;

/// A stretch of memory that is known by its first byte.
pub(crate) trait Ranged: Copy {
    /// The first byte.
    fn address(&self) -> u64;
    /// The first address behind it.
    fn end(&self) -> u64;
}

#[derive(Clone)]
struct Group {
    len: usize,
    addresses: [u64; GROUP],
    /// Where in `values` each stands.
    slots: [u32; GROUP],
}

impl Group {
    const EMPTY: Self = Self { len: 0, addresses: [0; GROUP], slots: [0; GROUP] };

    fn addresses(&self) -> &[u64] {
        &self.addresses[..self.len.min(GROUP)]
    }

    /// How many addresses are at most `address`.
    #[inline]
    fn up_to(&self, address: u64) -> usize {
        self.addresses().partition_point(|&other| other <= address)
    }

    fn insert(&mut self, at: usize, address: u64, slot: u32) {
        let len = self.len;
        self.addresses.copy_within(at..len, at + 1);
        self.slots.copy_within(at..len, at + 1);
        self.addresses[at] = address;
        self.slots[at] = slot;
        self.len += 1;
    }

    fn remove(&mut self, at: usize) -> u32 {
        let slot = self.slots[at];
        self.addresses.copy_within(at + 1..self.len, at);
        self.slots.copy_within(at + 1..self.len, at);
        self.len -= 1;
        slot
    }
}

/// A place: the group, by its order, and the address in it.
#[derive(Clone, Copy)]
struct Place {
    group: usize,
    at: usize,
}

/// Ranges by their first byte. They may not overlap; whoever inserts sees to it.
#[derive(Clone)]
pub(crate) struct AddressMap<T> {
    /// The first address of every group, in order; a group is never empty.
    firsts: Vec<u64>,
    /// Which of `groups` it is.
    order: Vec<u32>,
    groups: Vec<Group>,
    unused_groups: Vec<u32>,
    values: Vec<T>,
    unused_values: Vec<u32>,
    len: usize,
}

impl<T> Default for AddressMap<T> {
    fn default() -> Self {
        Self {
            firsts: Vec::new(),
            order: Vec::new(),
            groups: Vec::new(),
            unused_groups: Vec::new(),
            values: Vec::new(),
            unused_values: Vec::new(),
            len: 0,
        }
    }
}

impl<T: Ranged> AddressMap<T> {
    /// How many ranges there are.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    fn group(&self, index: usize) -> &Group {
        &self.groups[self.order[index] as usize]
    }

    fn value(&self, place: Place) -> &T {
        &self.values[self.group(place.group).slots[place.at] as usize]
    }

    /// The place of the last address that is at most `address`.
    #[inline]
    fn floor(&self, address: u64) -> Option<Place> {
        let group = self.firsts.partition_point(|&first| first <= address).checked_sub(1)?;
        // The first address of the group is one of those counted.
        let at = self.group(group).up_to(address) - 1;
        Some(Place { group, at })
    }

    fn after(&self, place: Option<Place>) -> Option<Place> {
        let next = match place {
            None => Place { group: 0, at: 0 },
            Some(Place { group, at }) if at + 1 < self.group(group).len => Place { group, at: at + 1 },
            Some(Place { group, .. }) => Place { group: group + 1, at: 0 },
        };
        (next.group < self.order.len()).then_some(next)
    }

    /// The place of exactly this address.
    #[inline]
    fn find(&self, address: u64) -> Option<Place> {
        self.floor(address).filter(|place| self.group(place.group).addresses[place.at] == address)
    }

    /// The range that begins at `address`.
    #[inline]
    pub(crate) fn get(&self, address: u64) -> Option<&T> {
        self.find(address).map(|place| self.value(place))
    }

    /// The range that begins at `address`, to be changed in anything but its first byte.
    #[inline]
    pub(crate) fn get_mut(&mut self, address: u64) -> Option<&mut T> {
        let place = self.find(address)?;
        let slot = self.group(place.group).slots[place.at];
        Some(&mut self.values[slot as usize])
    }

    /// The last range that begins at or before `address`.
    #[inline]
    pub(crate) fn at_or_before(&self, address: u64) -> Option<&T> {
        self.floor(address).map(|place| self.value(place))
    }

    /// The last range that begins before `address`.
    pub(crate) fn before(&self, address: u64) -> Option<&T> {
        self.at_or_before(address.checked_sub(1)?)
    }

    /// Adds a range where none that is there reaches into it; else nothing is done, and the answer is `false`.
    #[inline]
    pub(crate) fn insert_apart(&mut self, value: T) -> bool {
        let place = self.floor(value.address());
        if place.is_some_and(|place| self.value(place).end() > value.address()) {
            return false;
        }
        if let Some(next) = self.after(place)
            && self.group(next.group).addresses[next.at] < value.end()
        {
            return false;
        }
        self.insert_behind(place, value);
        true
    }

    fn insert_behind(&mut self, place: Option<Place>, value: T) {
        let slot = match self.unused_values.pop() {
            Some(slot) => {
                self.values[slot as usize] = value;
                slot
            }
            None => {
                self.values.push(value);
                (self.values.len() - 1) as u32
            }
        };
        self.len += 1;
        let address = value.address();
        let Some(mut place) = place else {
            if self.order.is_empty() {
                self.add_group(0, address, Group::EMPTY);
            }
            self.firsts[0] = address;
            return self.put(Place { group: 0, at: 0 }, address, slot);
        };
        place.at += 1;
        self.put(place, address, slot);
    }

    fn put(&mut self, mut place: Place, address: u64, slot: u32) {
        let index = self.order[place.group] as usize;
        if self.groups[index].len == GROUP {
            let half = GROUP / 2;
            let mut upper = Group::EMPTY;
            let lower = &mut self.groups[index];
            upper.len = GROUP - half;
            upper.addresses[..GROUP - half].copy_from_slice(&lower.addresses[half..]);
            upper.slots[..GROUP - half].copy_from_slice(&lower.slots[half..]);
            lower.len = half;
            self.add_group(place.group + 1, upper.addresses[0], upper);
            if place.at > half {
                place = Place { group: place.group + 1, at: place.at - half };
            }
        }
        let index = self.order[place.group] as usize;
        self.groups[index].insert(place.at, address, slot);
    }

    fn add_group(&mut self, at: usize, first: u64, group: Group) {
        let index = match self.unused_groups.pop() {
            Some(index) => {
                self.groups[index as usize] = group;
                index
            }
            None => {
                self.groups.push(group);
                (self.groups.len() - 1) as u32
            }
        };
        self.firsts.insert(at, first);
        self.order.insert(at, index);
    }

    /// Does away with a group that has few addresses left, where it is empty or the one before or behind has room for them.
    fn thin_out(&mut self, group: usize) {
        let len = self.group(group).len;
        let has_room = |other: usize| other < self.order.len() && self.group(other).len + len <= GROUP / 2;
        let upper = if len == 0 {
            group
        } else if has_room(group + 1) {
            group + 1
        } else if group > 0 && has_room(group - 1) {
            group
        } else {
            return;
        };
        self.firsts.remove(upper);
        let index = self.order.remove(upper);
        if len > 0 {
            let from = self.groups[index as usize].clone();
            let into = &mut self.groups[self.order[upper - 1] as usize];
            let until = into.len + from.len;
            into.addresses[into.len..until].copy_from_slice(&from.addresses[..from.len]);
            into.slots[into.len..until].copy_from_slice(&from.slots[..from.len]);
            into.len = until;
        }
        self.unused_groups.push(index);
    }

    /// Takes away the range that begins at `address`.
    #[inline]
    pub(crate) fn remove(&mut self, address: u64) -> Option<T> {
        let place = self.find(address)?;
        let index = self.order[place.group];
        let group = &mut self.groups[index as usize];
        let slot = group.remove(place.at);
        if place.at == 0 {
            self.firsts[place.group] = group.addresses[0];
        }
        if group.len < GROUP / 4 {
            self.thin_out(place.group);
        }
        self.len -= 1;
        self.unused_values.push(slot);
        Some(self.values[slot as usize])
    }

    /// All ranges, in order.
    pub(crate) fn iter(&self) -> Iter<'_, T> {
        Iter { map: self, next: self.after(None), left: self.len }
    }

    /// The ranges that begin at or behind `address`, in order.
    pub(crate) fn iter_from(&self, address: u64) -> impl Iterator<Item = &T> + use<'_, T> {
        let mut next = self.after(address.checked_sub(1).and_then(|before| self.floor(before)));
        std::iter::from_fn(move || {
            let place = next?;
            next = self.after(Some(place));
            Some(self.value(place))
        })
    }
}

impl<T: Ranged> FromIterator<T> for AddressMap<T> {
    /// Of ranges in order and apart.
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        let mut map = Self::default();
        for value in values {
            let last = map.order.len().checked_sub(1).map(|group| Place { group, at: map.group(group).len - 1 });
            map.insert_behind(last, value);
        }
        map
    }
}

/// Ranges in order.
pub(crate) struct Iter<'a, T> {
    map: &'a AddressMap<T>,
    next: Option<Place>,
    left: usize,
}

impl<'a, T: Ranged> Iterator for Iter<'a, T> {
    type Item = &'a T;

    #[inline]
    fn next(&mut self) -> Option<&'a T> {
        let place = self.next?;
        self.next = self.map.after(Some(place));
        self.left -= 1;
        Some(self.map.value(place))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<T: Ranged> ExactSizeIterator for Iter<'_, T> {}

impl<T: Ranged + PartialEq> PartialEq for AddressMap<T> {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl<T: Ranged + Eq> Eq for AddressMap<T> {}

impl<T: Ranged + fmt::Debug> fmt::Debug for AddressMap<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Stretch(u64, u64);

    impl Ranged for Stretch {
        fn address(&self) -> u64 {
            self.0
        }
        fn end(&self) -> u64 {
            self.0 + self.1
        }
    }

    fn check(map: &AddressMap<Stretch>, model: &BTreeMap<u64, Stretch>, address: u64) {
        assert_eq!(map.len(), model.len());
        assert!(map.iter().eq(model.values()), "{map:?} is not {model:?}");
        assert_eq!(map.get(address), model.get(&address));
        assert_eq!(map.at_or_before(address), model.range(..=address).next_back().map(|(_, value)| value));
        assert_eq!(map.before(address), model.range(..address).next_back().map(|(_, value)| value));
        assert!(map.iter_from(address).eq(model.range(address..).map(|(_, value)| value)));
        assert!(map.order.iter().all(|&group| map.groups[group as usize].len > 0));
        assert_eq!(map.order.len() + map.unused_groups.len(), map.groups.len());
    }

    proptest! {
        #[test]
        fn it_holds_what_a_tree_holds(steps in prop::collection::vec((0u8..8, 0u64..3000, 1u64..6), 0..3000), adding in 1u8..8) {
            let mut map = AddressMap::default();
            let mut model: BTreeMap<u64, Stretch> = BTreeMap::new();
            for (index, (what, address, len)) in steps.into_iter().enumerate() {
                if what < adding {
                    let stretch = Stretch(address, len);
                    let apart = !model.values().any(|other| other.0 < stretch.end() && address < other.end());
                    prop_assert_eq!(map.insert_apart(stretch), apart);
                    if apart {
                        model.insert(address, stretch);
                    }
                } else {
                    let first = model.range(address..).next().map_or(address, |(&first, _)| first);
                    prop_assert_eq!(map.remove(first), model.remove(&first));
                }
                if index % 64 == 0 {
                    check(&map, &model, address);
                }
            }
            check(&map, &model, 1500);
            prop_assert_eq!(&map, &model.values().copied().collect());
        }
    }
}
