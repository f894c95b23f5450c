//! Lists of allocations equal a computation from every allocation and every text of every site.

use vramscope_insight::allocations::{AllocationList, AllocationOrder, AllocationSource, Scope, SortKey};
use vramscope_insight::group::{GroupBy, Grouping};
use vramscope_insight::history::History;
use vramscope_insight::query::{BlockUse, Condition, Now, Query, Span, TextField};
use vramscope_insight::sites::{GroupRow, common_category, groups_at};
use vramscope_trace::{
    Allocation, Category, Definitions, DeviceId, DeviceLifetimes, Recording, Replay, SiteId, frame_name, site_name,
};

use crate::recordings::snapshot;

/// Recordings with several streams, pools, devices, categories and marks, and one without the
/// beginning of the history.
pub(crate) const RECORDINGS: [&str; 7] = [
    "mlp_train.pickle.zst",
    "streams.pickle.gz",
    "nested_pools.pickle.gz",
    "annotated.pickle.gz",
    "two_devices.pickle.gz",
    "ring_small.pickle.gz",
    "graphs.pickle.zst",
];

/// A recording with everything that tests compare lists with.
pub(crate) struct Subject {
    pub(crate) recording: Recording,
    pub(crate) history: History,
    /// The moments at which steps begin, chosen arbitrarily.
    pub(crate) steps: Vec<u64>,
}

impl Subject {
    /// Reads a snapshot of `tests/data`.
    pub(crate) fn new(name: &str) -> Self {
        let recording = snapshot(name);
        let mut history = History::new();
        while !history.extend(&recording, 1000).expect("the recording can be read").is_complete {}
        history.infer_categories(&recording);
        let (first, end) = (recording.first_event(), recording.end_event());
        let steps = (1..10).map(|part| first + (end - first) * part / 10).collect();
        Self { recording, history, steps }
    }

    /// Returns the grouping of a device's blocks that tables show.
    pub(crate) fn grouping(&self, device: DeviceId, by: GroupBy) -> Grouping {
        Grouping::of(by, &self.recording).with_categories(&self.history.categories(device))
    }

    /// Returns a random moment of the recording.
    pub(crate) fn moment(&self, random: &mut fastrand::Rng) -> u64 {
        random.u64(self.recording.first_event()..=self.recording.end_event())
    }

    /// Returns the history for lists to read.
    fn source(&self) -> AllocationSource<'_> {
        AllocationSource { history: &self.history, definitions: self.recording.definitions() }
    }
}

/// Returns a random query of 1 to 3 terms about an allocation of the recording and others like it.
pub(crate) fn random_query(subject: &Subject, random: &mut fastrand::Rng) -> String {
    let definitions = subject.recording.definitions();
    let devices: Vec<_> = subject.history.all_lifetimes().devices().collect();
    let mut terms = Vec::new();
    for _ in 0..random.usize(1..=3) {
        let (device, lifetimes) = devices[random.usize(..devices.len())];
        let rows: Vec<(u32, Allocation)> = lifetimes.rows(0..lifetimes.row_end()).collect();
        let Some((_, one)) = random.choice(&rows) else { continue };
        let site = definitions.site(one.site);
        let frames: Vec<_> = definitions.stack(site.stack).collect();
        let frame = random.choice(&frames).copied().unwrap_or_default();
        let (function, file) = (definitions.string(frame.function), definitions.string(frame.file));
        let quoted = |text: &str| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
        let part = |text: &str, random: &mut fastrand::Rng| {
            let chars: Vec<char> = text.chars().collect();
            let start = random.usize(..=chars.len() / 2);
            let part: String = chars[start..].iter().take(random.usize(3..9)).collect();
            quoted(if part.is_empty() { "x" } else { &part })
        };
        let operator = *random.choice([">", ">=", "<", "<=", "="].iter()).expect("one of five");
        let time_ns = random.u64(..2_000_000);
        let term = match random.u32(..20) {
            0 => format!("size{operator}{}", one.size),
            1 => format!("{}..{}", one.size / 2, one.size),
            2 => format!("requested{operator}{}", one.requested),
            3 => format!("age{operator}{}ev", random.u64(..300)),
            4 => format!("age{operator}{time_ns}ns"),
            5 => format!("age{operator}{}steps", random.u64(..6)),
            6 => format!("life{operator}{}ev", random.u64(..60)),
            7 => format!("life{operator}{time_ns}ns"),
            8 => format!("life{operator}{}steps", random.u64(..4)),
            9 => part(function, random),
            10 => format!("function:{}", part(function, random)),
            11 => format!("file:{}", part(file, random)),
            12 if frame.line > 0 && !file.is_empty() && !file.contains([' ', '"']) => format!("{file}:{}", frame.line),
            13 => format!("site:{}", part(&site_name(definitions, one.site), random)),
            14 => format!("category:{}", Category::ALL[random.usize(..Category::ALL.len())].name().replace(' ', "_")),
            15 => format!("stream{operator}{}", one.stream.0),
            16 => {
                format!("pool:{}", random.choice(["small", "large", "default", "private"].iter()).expect("one of four"))
            }
            17 => format!("addr:{:#x}", one.address + random.u64(..one.size.max(1))),
            18 => format!("event{operator}{}", one.first_moment),
            _ => match random.u32(..5) {
                0 => format!("gpu:{}", if device == DeviceId::HOST { "host".to_owned() } else { device.0.to_string() }),
                1 => format!("state:{}", random.choice(["allocated", "pending"].iter()).expect("one of two")),
                2 => format!("freed:{}", random.choice(["yes", "no"].iter()).expect("one of two")),
                3 => {
                    format!("kind:{}", random.choice(["alloc", "free", "segment", "mark"].iter()).expect("one of four"))
                }
                _ => format!("site:#{}", one.site.0),
            },
        };
        let sign = if random.u32(..4) == 0 { "-" } else { "" };
        terms.push(format!("{sign}{term}"));
    }
    terms.join(" ")
}

/// Returns true if a site meets a condition about text or sites, found without the numbers of
/// strings and stacks; `None` for other conditions.
pub(crate) fn site_holds(definitions: &Definitions, id: SiteId, condition: &Condition) -> Option<bool> {
    let site = definitions.site(id);
    let (field, text, line) = match condition {
        Condition::Text { field, text, line } => (*field, text, *line),
        Condition::Site(wanted) => return Some(*wanted == id),
        _ => return None,
    };
    let contains = |string: &str| string.to_lowercase().contains(text);
    let mut fields = Vec::new();
    if field == TextField::Any {
        fields.push(site.category.name().to_owned());
    }
    if matches!(field, TextField::Any | TextField::Module) {
        fields.extend([site.scope, site.compile_context].map(|id| definitions.string(id).to_owned()));
    }
    if field == TextField::Site {
        fields.push(site_name(definitions, id));
    }
    for frame in definitions.stack(site.stack) {
        assert!(!frame_name(definitions, frame, true).contains('\n'));
        if matches!(field, TextField::Any | TextField::Function) {
            fields.push(definitions.string(frame.function).to_owned());
        }
        if matches!(field, TextField::Any | TextField::File) && line.is_none_or(|line| line == frame.line) {
            fields.push(definitions.string(frame.file).to_owned());
        }
    }
    Some(fields.iter().any(|field| contains(field)))
}

/// Returns how many steps begin after `from` and up to `to`.
pub(crate) fn steps_between(steps: &[u64], from: u64, to: u64) -> u64 {
    steps.iter().filter(|&&step| from < step && step <= to).count() as u64
}

/// Returns true if an allocation meets a condition at the moment `now`.
fn holds(subject: &Subject, device: DeviceId, one: &Allocation, condition: &Condition, now: u64) -> bool {
    if let Some(holds) = site_holds(subject.recording.definitions(), one.site, condition) {
        return holds;
    }
    let time_ns = |moment: u64| subject.history.time_ns(moment);
    let span = |span: &Span, from: u64, to: Option<u64>| match span {
        Span::Time(limit) => limit.contains(to.map_or(u64::MAX, |to| time_ns(to) - time_ns(from))),
        Span::Events(limit) => limit.contains(to.map_or(u64::MAX, |to| to - from)),
        Span::Steps(limit) => limit.contains(to.map_or(u64::MAX, |to| steps_between(&subject.steps, from, to))),
    };
    match condition {
        Condition::Categories(bits) => {
            let category = subject.grouping(device, GroupBy::Site).category_of_allocation(one).category;
            let index = Category::ALL.iter().position(|&known| known == category).expect("it is one of all");
            bits >> index & 1 == 1
        }
        Condition::Address(address) => (one.address..one.address + one.size).contains(address),
        Condition::Size(limit) => limit.contains(one.size),
        Condition::Requested(limit) => limit.contains(one.requested),
        Condition::Age(limit) => {
            one.first_moment <= now && span(limit, one.first_moment, Some(one.allocated_until.unwrap_or(now).min(now)))
        }
        Condition::Life(limit) => span(limit, one.first_moment, one.allocated_until),
        Condition::Event(limit) => limit.contains(one.first_moment),
        Condition::Stream(limit) => limit.contains(one.stream.0),
        Condition::Device(wanted) => *wanted == device,
        Condition::Pool(filter) => filter.contains(one.pool),
        Condition::Use(BlockUse::Allocated) => one.is_allocated_at(now),
        Condition::Use(BlockUse::Pending) => one.is_active_at(now) && !one.is_allocated_at(now),
        Condition::Freed(wanted) => one.allocated_until.is_some() == *wanted,
        _ => false,
    }
}

/// Returns true if an allocation is in a scope.
fn is_in(scope: Scope, one: &Allocation, now: u64) -> bool {
    match scope {
        Scope::All => true,
        Scope::Live => one.is_active_at(now),
        Scope::MadeIn { from, to } => one.start_observed && (from..=to).contains(&one.first_moment),
        Scope::LiveIn { from, to } => one.is_active_at(from) || (from..=to).contains(&one.first_moment),
    }
}

/// Returns the row numbers of a list in order: by value, then by start.
fn expected_rows(
    subject: &Subject,
    (device, lifetimes): (DeviceId, &DeviceLifetimes),
    query: &Query,
    scope: Scope,
    order: AllocationOrder,
    now: u64,
) -> Vec<u32> {
    let matches = |one: &Allocation| {
        is_in(scope, one, now)
            && query.terms().iter().all(|term| holds(subject, device, one, &term.condition, now) != term.is_negated)
    };
    let time_ns = |moment: u64| subject.history.time_ns(moment);
    let value = |one: &Allocation| {
        let number = match order.key {
            SortKey::Size => one.size,
            SortKey::Requested => one.requested,
            SortKey::Age if one.first_moment > now => 0,
            SortKey::Age => time_ns(one.allocated_until.unwrap_or(now).min(now)) - time_ns(one.first_moment),
            SortKey::Lifetime => {
                one.allocated_until.map_or(u64::MAX, |until| time_ns(until) - time_ns(one.first_moment))
            }
            SortKey::Start => one.first_moment,
            SortKey::End => one.allocated_until.unwrap_or(u64::MAX),
            SortKey::Address => one.address,
            SortKey::Site => return (0, site_name(subject.recording.definitions(), one.site)),
        };
        (number, String::new())
    };
    let mut rows: Vec<_> = lifetimes.rows(0..lifetimes.row_end()).filter(|(_, one)| matches(one)).collect();
    // Rows are in the order of their starts.
    if order.is_descending {
        rows.sort_by_cached_key(|(_, one)| std::cmp::Reverse(value(one)));
    } else {
        rows.sort_by_cached_key(|(_, one)| value(one));
    }
    rows.into_iter().map(|(row, _)| row).collect()
}

#[test]
fn lists_equal_a_search_of_all_allocations() {
    let mut random = fastrand::Rng::with_seed(11);
    let mut found = 0;
    for name in RECORDINGS {
        let subject = Subject::new(name);
        for _ in 0..60 {
            let text = if random.u32(..8) == 0 { String::new() } else { random_query(&subject, &mut random) };
            let query = Query::parse(&text).expect("random queries are valid");
            let (now, from, length) = (subject.moment(&mut random), subject.moment(&mut random), random.u64(..100));
            let to = from + length;
            let scopes = [Scope::All, Scope::Live, Scope::MadeIn { from, to }, Scope::LiveIn { from, to }];
            let scope = *random.choice(scopes.iter()).expect("one of four");
            let key = *random.choice(SortKey::ALL.iter()).expect("one of eight");
            let order = AllocationOrder { key, is_descending: random.bool() };
            for (device, lifetimes) in subject.history.all_lifetimes().devices() {
                let matcher = query.compile(&subject.recording, &subject.steps, subject.history.inferred_categories());
                let mut list = AllocationList::new(device, matcher, scope, order, now);
                let source = subject.source();
                while !list.step(&source, random.u64(1..2000)).is_finished() {}
                let context = format!("{name}: {text} {scope:?} {order:?} at {now}");
                let expected = expected_rows(&subject, (device, lifetimes), &query, scope, order, now);
                assert_eq!(list.len(), expected.len(), "{context}");
                let (offset, count) = (random.usize(..=expected.len()), random.usize(..200));
                let window: Vec<u32> = list.rows(&source, offset, count).iter().map(|one| one.row).collect();
                assert_eq!(window, expected[offset..(offset + count).min(expected.len())], "{context}");
                let all = list.rows(&source, 0, usize::MAX);
                assert_eq!(all.iter().map(|one| one.row).collect::<Vec<_>>(), expected, "{context}");
                assert_eq!(all.iter().map(|one| one.allocation.size).sum::<u64>(), list.total_bytes(), "{context}");
                if let Some(row) = random.choice(&expected) {
                    let position = list.position_of(*row).expect("the row is in the list");
                    assert_eq!(expected[position], *row, "{context}");
                }
                found += expected.len();
            }
        }
    }
    assert!(found > 20_000, "the queries find {found} allocations");
}

#[test]
fn live_rows_add_up_to_the_counters_and_match_the_blocks() {
    let mut random = fastrand::Rng::with_seed(12);
    for name in RECORDINGS {
        let subject = Subject::new(name);
        let mut replay = Replay::new();
        for _ in 0..20 {
            let now = subject.moment(&mut random);
            let state = replay.seek(&subject.recording, now).expect("the recording can be read");
            for (device, memory) in state.devices() {
                let everything =
                    Query::default().compile(&subject.recording, &[], subject.history.inferred_categories());
                let mut list = AllocationList::new(device, everything, Scope::Live, AllocationOrder::default(), now);
                while !list.step(&subject.source(), 1000).is_finished() {}
                let counters = memory.counters();
                assert_eq!(list.total_bytes(), counters.active, "{name} at {now}");
                assert_eq!(list.total_bytes() - list.pending_bytes(), counters.allocated, "{name} at {now}");

                // A block matches the queries that its allocation matches, except about its end.
                let text = random_query(&subject, &mut random);
                if ["life", "freed", "age", "event"].iter().any(|word| text.contains(word)) {
                    continue;
                }
                let matcher = Query::parse(&text).expect("random queries are valid").compile(
                    &subject.recording,
                    &subject.steps,
                    subject.history.inferred_categories(),
                );
                let moment = Now::new(now, &subject.history);
                let blocks = memory.blocks().filter(|block| matcher.matches_block(device, block, &moment));
                let mut addresses: Vec<u64> = blocks.map(|block| block.address).collect();
                let order = AllocationOrder { key: SortKey::Address, is_descending: false };
                let mut list = AllocationList::new(device, matcher.clone(), Scope::Live, order, now);
                while !list.step(&subject.source(), 1000).is_finished() {}
                addresses.sort_unstable();
                let listed = list.rows(&subject.source(), 0, usize::MAX);
                let listed: Vec<u64> = listed.iter().map(|one| one.allocation.address).collect();
                assert_eq!(listed, addresses, "{name}: {text} at {now}");
            }
        }
    }
}

/// Returns the number and the bytes of the allocations that are live at `now` and match a query.
fn live_matches(subject: &Subject, device: DeviceId, query: &str, now: u64) -> (u64, u64) {
    let matcher = Query::parse(query).expect("a valid query").compile(
        &subject.recording,
        &[],
        subject.history.inferred_categories(),
    );
    let mut list = AllocationList::new(device, matcher, Scope::Live, AllocationOrder::default(), now);
    while !list.step(&subject.source(), 1000).is_finished() {}
    (list.len() as u64, list.total_bytes())
}

#[test]
fn categories_match_as_tables_show_them() {
    // The other recordings have blocks that are older.
    let recordings =
        [("mlp_train.pickle.zst", "optimizer state"), ("ring.pickle.zst", "gradient"), ("late.pickle.gz", "unknown")];
    for (name, wanted) in recordings {
        let subject = Subject::new(name);
        let definitions = subject.recording.definitions();
        // The program releases everything at its end.
        let (first, end) = (subject.recording.first_event(), subject.recording.end_event());
        let mut found = 0;
        for now in (0..=20).map(|part| first + (end - first) * part / 20) {
            for (device, lifetimes) in subject.history.all_lifetimes().devices() {
                let mut by_category = subject.grouping(device, GroupBy::Category);
                let rows = groups_at(lifetimes, now, definitions, &mut by_category);
                let sum = |rows: &mut dyn Iterator<Item = &GroupRow>| {
                    rows.fold((0, 0), |(blocks, bytes), row| (blocks + row.blocks, bytes + row.bytes))
                };
                let has = |row: &&GroupRow, category: &str| {
                    common_category(&row.categories).is_some_and(|one| one.category.name() == category)
                };
                for category in Category::ALL.map(Category::name) {
                    let query = format!("category:{}", category.replace(' ', "_"));
                    let expected = sum(&mut rows.iter().filter(|row| has(row, category)));
                    assert_eq!(live_matches(&subject, device, &query, now), expected, "{name}: {query} at {now}");
                    let expected_rest = sum(&mut rows.iter().filter(|row| !has(row, category)));
                    let rest = live_matches(&subject, device, &format!("-{query}"), now);
                    assert_eq!(rest, expected_rest, "{name}: not {query} at {now}");
                    if category == wanted {
                        found += expected.0;
                    }
                }
            }
        }
        assert!(found > 0, "{name} has memory of the category {wanted}");
    }
    let subject = Subject::new("mlp_train.pickle.zst");
    let (device, lifetimes) = subject.history.all_lifetimes().devices().next().expect("the recording has a device");
    let now = subject.recording.end_event() * 9 / 10;
    let mut by_category = subject.grouping(device, GroupBy::Category);
    let rows = groups_at(lifetimes, now, subject.recording.definitions(), &mut by_category);
    let optimizer = rows.iter().find(|row| &*row.name == "optimizer state (inferred)").expect("Adam has state");
    assert_eq!(live_matches(&subject, device, "category:optimizer", now), (optimizer.blocks, optimizer.bytes));
}

#[test]
fn history_of_an_address_has_all_its_allocations_in_order() {
    let mut random = fastrand::Rng::with_seed(13);
    let subject = Subject::new("mlp_train.pickle.zst");
    for (device, lifetimes) in subject.history.all_lifetimes().devices() {
        for _ in 0..50 {
            let Some(one) = lifetimes.row(random.u32(..lifetimes.row_end())) else { continue };
            let address = one.address + random.u64(..one.size);
            let mut list =
                AllocationList::history_of(device, address, subject.recording.end_event(), &subject.recording);
            while !list.step(&subject.source(), 100).is_finished() {}
            let listed: Vec<_> = list.rows(&subject.source(), 0, usize::MAX);
            let expected: Vec<Allocation> = lifetimes.history_of(address).collect();
            assert_eq!(listed.iter().map(|one| one.allocation).collect::<Vec<_>>(), expected, "{address:#x}");
            assert!(!expected.is_empty());
        }
    }
}

#[test]
fn rows_show_ages_and_lifetimes() {
    let subject = Subject::new("streams.pickle.gz");
    let now = subject.recording.end_event() / 2;
    for (device, _) in subject.history.all_lifetimes().devices() {
        let everything = Query::default().compile(&subject.recording, &[], subject.history.inferred_categories());
        let mut list = AllocationList::new(device, everything, Scope::All, AllocationOrder::default(), now);
        assert!(list.rows(&subject.source(), 0, 10).is_empty(), "the list is not finished");
        while !list.step(&subject.source(), 1000).is_finished() {}
        for one in list.rows(&subject.source(), 0, 500) {
            let Allocation { first_moment, allocated_until, .. } = one.allocation;
            let ended = allocated_until.unwrap_or(now).min(now);
            assert_eq!(one.age_events, (first_moment <= now).then(|| ended - first_moment));
            assert_eq!(one.start_ns, subject.history.time_ns(first_moment));
            assert_eq!(one.lifetime_ns, allocated_until.map(|until| subject.history.time_ns(until) - one.start_ns));
            let is_active = one.allocation.is_active_at(now);
            assert_eq!(one.is_pending, is_active && !one.allocation.is_allocated_at(now));
        }
    }
}
