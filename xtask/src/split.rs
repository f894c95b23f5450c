//! Splits a WebAssembly module in two: what the page needs at once, and functions for later.
//!
//! The functions that the page calls later are methods of a trait, which are only called through
//! vtables and so through the module's table of functions. They move to the second module, together
//! with all functions that only they call. The second module shares the first one's memory, table
//! and globals, calls the first one's functions by its exports, and fills its own slots of the
//! table when it is instantiated. Until then these slots are empty: a call traps.
//!
//! A call from one module to the other takes several times as long as a call within one. Functions
//! that run for every event or allocation therefore stay in the first module, together with all
//! functions that they call, even if only the second one needs them.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use flate2::Crc;
use walrus::ir::{self, Value, Visitor};
use walrus::{
    ConstExpr, DataKind, ElementItems, ElementKind, ExportItem, FunctionId, FunctionKind, GlobalId, GlobalKind,
    ImportedFunction, Module, ModuleConfig, TableId,
};

use crate::shell::Result;

/// The name under which the second module imports the first one's exports.
const IMPORT_MODULE: &str = "first";
/// The export of the first module by which the engine finds out that there is a second one: the
/// table.
const TABLE_EXPORT: &str = "later";

/// A method of the trait, by its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    /// A method of a type that the page needs at once, which no other type can have in its vtable.
    Unique,
    /// Any other method of a type that the page needs at once, and a default method.
    Other,
    /// A method of a type that the page needs later.
    Later,
}

/// The two modules of a split, without names of functions.
#[derive(Debug)]
pub(crate) struct Split {
    pub(crate) first: Vec<u8>,
    pub(crate) later: Vec<u8>,
    /// Number of functions in the second module.
    pub(crate) moved: usize,
}

/// Splits a module that has names. `method` tells by a function's demangled name which method of
/// the trait it is, and `stays` whether it stays in the first module in any case.
///
/// # Errors
/// If the module is malformed, or has no methods of one of both kinds of types.
pub(crate) fn split(
    wasm: &[u8],
    method: impl Fn(&str) -> Option<Method>,
    stays: impl Fn(&str) -> bool,
) -> Result<Split> {
    // Both are parsed from the same bytes: equal positions are equal functions.
    let (mut first, mut later) = (parse(wasm)?, parse(wasm)?);
    let contents = Contents::new(&first, method, stays)?;
    let moved = contents.moved()?;
    let exports = contents.exports(&moved);
    let version = version(wasm);
    reduce_to_first(&mut first, &moved, &exports, &version)?;
    reduce_to_later(&mut later, &moved, &exports, &version)?;
    Ok(Split { first: first.emit_wasm(), later: later.emit_wasm(), moved: moved.len() })
}

/// Parses a module, to write it without names.
fn parse(wasm: &[u8]) -> Result<Module> {
    let mut config = ModuleConfig::new();
    config.generate_name_section(false).generate_producers_section(false);
    config.parse(wasm).map_err(|error| format!("the module cannot be split: {error:#}"))
}

/// Returns the name of an export that only a second module of the same build imports: another build
/// lays out memory and table differently.
fn version(wasm: &[u8]) -> String {
    let mut checksum = Crc::new();
    checksum.update(wasm);
    format!("{:08x}", checksum.sum())
}

/// The position of a function in its module.
type Position = usize;

/// A function, as far as the split needs it.
#[derive(Default)]
struct Function {
    method: Option<Method>,
    /// Whether it stays in the first module in any case.
    stays: bool,
    /// The functions that it calls directly, or takes the address of.
    callees: BTreeSet<Position>,
    /// Number of its instructions.
    size: u64,
    is_import: bool,
}

/// What the split needs to know of a module.
struct Contents {
    functions: Vec<Function>,
    /// The functions that are called from outside: exports and the start function.
    exported: BTreeSet<Position>,
    /// The function in each slot of the table.
    slots: BTreeMap<i32, Position>,
    /// The 32-bit numbers in data that may be slots, by address.
    words: BTreeMap<i32, i32>,
}

impl Contents {
    fn new(module: &Module, method: impl Fn(&str) -> Option<Method>, stays: impl Fn(&str) -> bool) -> Result<Self> {
        let positions: HashMap<FunctionId, Position> =
            module.funcs.iter().enumerate().map(|(position, function)| (function.id(), position)).collect();
        let functions = module.funcs.iter().map(|function| match &function.kind {
            FunctionKind::Local(local) => {
                let mut callees = Callees { positions: &positions, found: BTreeSet::new() };
                ir::dfs_in_order(&mut callees, local, local.entry_block());
                let name = function.name.as_deref().map(without_hash).unwrap_or_default();
                let (method, stays) = (method(name), stays(name));
                Function { method, stays, callees: callees.found, size: local.size(), is_import: false }
            }
            _ => Function { is_import: true, ..Function::default() },
        });
        let functions = functions.collect();
        let exported = module.exports.iter().filter_map(|export| match export.item {
            ExportItem::Function(id) => Some(positions[&id]),
            _ => None,
        });
        let exported = exported.chain(module.start.map(|id| positions[&id])).collect();
        let slots: BTreeMap<i32, Position> =
            slots(module, function_table(module)?).into_iter().map(|(slot, id)| (slot, positions[&id])).collect();
        let mut words = BTreeMap::new();
        for data in module.data.iter() {
            if let DataKind::Active { offset: ConstExpr::Value(Value::I32(offset)), .. } = data.kind {
                let start = offset.wrapping_neg() & 3;
                let (numbers, _) = data.value.get(start as usize..).unwrap_or_default().as_chunks::<4>();
                let addresses = (offset + start..).step_by(4);
                let numbers = numbers.iter().map(|bytes| i32::from_le_bytes(*bytes));
                words.extend(addresses.zip(numbers).filter(|(_, number)| slots.contains_key(number)));
            }
        }
        Ok(Self { functions, exported, slots, words })
    }

    /// Returns the functions that only methods of later types need. All other functions in the
    /// table may be called at any time.
    fn moved(&self) -> Result<BTreeSet<Position>> {
        let shared = self.in_first_vtables()?;
        let is_root = |position: &Position| {
            let function = &self.functions[*position];
            function.method != Some(Method::Later) || function.is_trivial() || shared.contains(position)
        };
        let in_table = self.slots.values().copied().filter(is_root);
        let stays = (0..self.functions.len()).filter(|position| self.functions[*position].stays);
        let mut pending: Vec<Position> = self.exported.iter().copied().chain(in_table).chain(stays).collect();
        let mut kept = BTreeSet::new();
        while let Some(position) = pending.pop() {
            if kept.insert(position) {
                pending.extend(&self.functions[position].callees);
            }
        }
        let is_moved = |position: &Position| !self.functions[*position].is_import && !kept.contains(position);
        let moved: BTreeSet<Position> = (0..self.functions.len()).filter(is_moved).collect();
        if moved.is_empty() { Err("no function is only needed later".to_owned()) } else { Ok(moved) }
    }

    /// Returns the methods in the vtables of the types that the page needs at once. The compiler
    /// merges equal functions, so that one with the name of a later type may be among them.
    fn in_first_vtables(&self) -> Result<HashSet<Position>> {
        let function = |address: i32| self.words.get(&address).map(|slot| self.slots[slot]);
        let method = |address: i32| function(address).and_then(|position| self.functions[position].method);
        let mut found = HashSet::new();
        for start in self.words.keys().copied().filter(|address| method(*address) == Some(Method::Unique)) {
            for step in [4, -4] {
                let addresses = (0..).map(|number| start + step * number);
                found.extend(addresses.take_while(|address| method(*address).is_some()).filter_map(function));
            }
        }
        if found.is_empty() { Err("no vtable of a type that the page needs at once".to_owned()) } else { Ok(found) }
    }

    /// Returns the functions that the second module calls in the first one, and the names under
    /// which they are exported.
    fn exports(&self, moved: &BTreeSet<Position>) -> BTreeMap<Position, String> {
        let callees = moved.iter().flat_map(|position| &self.functions[*position].callees);
        let needed: BTreeSet<Position> = callees.copied().filter(|callee| !moved.contains(callee)).collect();
        needed.into_iter().enumerate().map(|(number, position)| (position, short_name(number))).collect()
    }
}

impl Function {
    /// Returns true for a function that the compiler may have merged with one of any other trait or
    /// type, because it is small and calls no other.
    fn is_trivial(&self) -> bool {
        /// Most instructions of such a function.
        const MAX_SIZE: u64 = 40;
        self.callees.is_empty() && self.size <= MAX_SIZE
    }
}

/// Collects the functions that a function refers to.
struct Callees<'a> {
    positions: &'a HashMap<FunctionId, Position>,
    found: BTreeSet<Position>,
}

impl<'instr> Visitor<'instr> for Callees<'_> {
    fn visit_function_id(&mut self, id: &FunctionId) {
        self.found.insert(self.positions[id]);
    }
}

/// Removes the moved functions from the first module.
fn reduce_to_first(
    module: &mut Module,
    moved: &BTreeSet<Position>,
    exports: &BTreeMap<Position, String>,
    version: &str,
) -> Result<()> {
    let ids: Vec<FunctionId> = module.funcs.iter().map(walrus::Function::id).collect();
    let moved: HashSet<FunctionId> = moved.iter().map(|position| ids[*position]).collect();
    let table = function_table(module)?;
    let mut kept = slots(module, table);
    kept.retain(|_, id| !moved.contains(id));
    set_slots(module, table, kept);
    for (position, name) in exports {
        module.exports.add(name, ids[*position]);
    }
    for name in [TABLE_EXPORT, version] {
        module.exports.add(name, table);
    }
    for (name, global) in mutable_globals(module) {
        module.exports.add(&name, global);
    }
    walrus::passes::gc::run(module);
    Ok(())
}

/// Removes everything but the moved functions from the second module.
fn reduce_to_later(
    module: &mut Module,
    moved: &BTreeSet<Position>,
    exports: &BTreeMap<Position, String>,
    version: &str,
) -> Result<()> {
    let ids: Vec<FunctionId> = module.funcs.iter().map(walrus::Function::id).collect();
    let is_moved: HashSet<FunctionId> = moved.iter().map(|position| ids[*position]).collect();
    let table = function_table(module)?;
    let memory = module.exports.iter().find_map(|export| match export.item {
        ExportItem::Memory(id) => Some((id, export.name.clone())),
        _ => None,
    });
    let (memory, memory_name) = memory.ok_or("the module does not export its memory")?;
    let old_exports: Vec<_> = module.exports.iter().map(walrus::Export::id).collect();
    old_exports.into_iter().for_each(|id| module.exports.delete(id));
    let customs: Vec<_> = module.customs.iter().map(|(id, _)| id).collect();
    customs.into_iter().for_each(|id| drop(module.customs.delete(id)));
    let data: Vec<_> = module.data.iter().map(walrus::Data::id).collect();
    data.into_iter().for_each(|id| module.data.delete(id));
    module.start = None;
    let mut filled = slots(module, table);
    filled.retain(|_, id| is_moved.contains(id));
    set_slots(module, table, filled);
    let import = module.imports.add(IMPORT_MODULE, &memory_name, memory);
    let memory = module.memories.get_mut(memory);
    memory.import = Some(import);
    memory.data_segments.clear();
    let import = module.imports.add(IMPORT_MODULE, version, table);
    module.tables.get_mut(table).import = Some(import);
    for (name, global) in mutable_globals(module) {
        let import = module.imports.add(IMPORT_MODULE, &name, global);
        module.globals.get_mut(global).kind = GlobalKind::Import(import);
    }
    for (position, name) in exports {
        let id = ids[*position];
        if let FunctionKind::Import(function) = &module.funcs.get(id).kind {
            module.imports.delete(function.import);
        }
        let ty = module.funcs.get(id).ty();
        let import = module.imports.add(IMPORT_MODULE, name, id);
        module.funcs.get_mut(id).kind = FunctionKind::Import(ImportedFunction { import, ty });
    }
    walrus::passes::gc::run(module);
    Ok(())
}

/// Returns a function's name without the hash that the compiler appends: `::h` and 16 hexadecimal
/// digits.
fn without_hash(name: &str) -> &str {
    let is_hash = |hash: &str| hash.len() == 16 && hash.bytes().all(|digit| digit.is_ascii_hexdigit());
    name.rsplit_once("::h").filter(|(_, hash)| is_hash(hash)).map_or(name, |(name, _)| name)
}

/// Returns the table through which functions are called by their addresses.
fn function_table(module: &Module) -> Result<TableId> {
    let table = module.tables.main_function_table().map_err(|error| format!("{error:#}"))?;
    table.ok_or_else(|| "the module has no table of functions".to_owned())
}

/// Returns the offset and the functions of an element segment that fills a part of `table`.
fn functions_in(element: &walrus::Element, table: TableId) -> Option<(i32, &[FunctionId])> {
    match (&element.kind, &element.items) {
        (
            ElementKind::Active { table: filled, offset: ConstExpr::Value(Value::I32(offset)) },
            ElementItems::Functions(ids),
        ) if *filled == table => Some((*offset, ids)),
        _ => None,
    }
}

/// Returns the function in each slot of a table.
fn slots(module: &Module, table: TableId) -> BTreeMap<i32, FunctionId> {
    let segments = module.elements.iter().filter_map(|element| functions_in(element, table));
    segments.flat_map(|(offset, ids)| (offset..).zip(ids.iter().copied())).collect()
}

/// Replaces the element segments that fill a table.
fn set_slots(module: &mut Module, table: TableId, slots: BTreeMap<i32, FunctionId>) {
    let old = module.elements.iter().filter(|element| functions_in(element, table).is_some());
    let old: Vec<_> = old.map(walrus::Element::id).collect();
    for id in old {
        module.tables.get_mut(table).elem_segments.remove(&id);
        module.elements.delete(id);
    }
    let mut segments: Vec<(i32, Vec<FunctionId>)> = Vec::new();
    for (slot, id) in slots {
        match segments.last_mut() {
            Some((offset, ids)) if *offset + ids.len() as i32 == slot => ids.push(id),
            _ => segments.push((slot, vec![id])),
        }
    }
    for (offset, ids) in segments {
        let offset = ConstExpr::Value(Value::I32(offset));
        let id = module.elements.add(ElementKind::Active { table, offset }, ElementItems::Functions(ids));
        module.tables.get_mut(table).elem_segments.insert(id);
    }
}

/// Returns the globals that functions change, such as the stack pointer, and the names under which
/// they are exported.
fn mutable_globals(module: &Module) -> Vec<(String, GlobalId)> {
    let globals = module.globals.iter().filter(|global| global.mutable).enumerate();
    globals.map(|(number, global)| (format!("${number}"), global.id())).collect()
}

/// Returns a name of lower-case letters: `a`, `b`, …, `z`, `aa`, `ba`, ….
fn short_name(mut number: usize) -> String {
    const LETTERS: &[u8; 26] = b"abcdefghijklmnopqrstuvwxyz";
    let mut name = String::new();
    loop {
        name.push(char::from(LETTERS[number % LETTERS.len()]));
        number /= LETTERS.len();
        if number == 0 {
            return name;
        }
        number -= 1;
    }
}

#[cfg(test)]
mod tests {
    use walrus::{FunctionBuilder, RefType, ValType};

    use super::*;

    /// The first slot that the table of the test's module fills.
    const FIRST_SLOT: i32 = 10;

    /// Adds a function that calls others.
    fn add(module: &mut Module, name: &str, callees: &[FunctionId]) -> FunctionId {
        let mut builder = FunctionBuilder::new(&mut module.types, &[ValType::I32], &[ValType::I32]);
        let argument = module.locals.add(ValType::I32);
        builder.name(format!("{name}::h0123456789abcdef"));
        let mut body = builder.func_body();
        body.local_get(argument);
        for callee in callees {
            body.call(*callee);
        }
        builder.finish(vec![argument], &mut module.funcs)
    }

    /// Returns a module with vtables of the types `Map` and `List`. `List::size` is also in the
    /// vtable of `Map`, as after a merge of equal functions.
    fn module() -> Vec<u8> {
        let mut module = Module::default();
        let memory = module.memories.add_local(false, false, 1, None, None);
        module.exports.add("memory", memory);
        let ty = module.types.add(&[ValType::I32], &[ValType::I32]);
        let (imported, _) = module.add_import_func("js", "log", ty);
        let shared = add(&mut module, "shared", &[imported]);
        let helper = add(&mut module, "helper", &[shared, imported]);
        let page = add(&mut module, "page", &[shared]);
        module.exports.add("page", page);
        let slots = [
            ("drop", vec![]),
            ("Map::draw", vec![shared]),
            ("Map::content", vec![shared]),
            ("List::size", vec![shared]),
            ("List::draw", vec![helper]),
            ("List::content", vec![helper, shared]),
            ("List::is_small", vec![]),
        ];
        let slots = slots.map(|(name, callees)| add(&mut module, name, &callees));
        let table = module.tables.add_local(false, 20, Some(20), RefType::FUNCREF);
        set_slots(&mut module, table, (FIRST_SLOT..).zip(slots).collect());
        // An odd address, and two vtables: drop, size and align come before the methods.
        let vtables = [[10, 64, 4, 11, 12, 13, 16], [10, 64, 4, 14, 15, 13, 16]];
        let words = vtables.as_flattened().iter().flat_map(|word: &i32| word.to_le_bytes());
        let offset = ConstExpr::Value(Value::I32(1022));
        let data = [0, 0].into_iter().chain(words).collect();
        let data = module.data.add(DataKind::Active { memory, offset }, data);
        module.memories.get_mut(memory).data_segments.insert(data);
        module.emit_wasm()
    }

    fn method(name: &str) -> Option<Method> {
        match name.split_once("::")? {
            ("Map", "content") => Some(Method::Unique),
            ("Map", _) => Some(Method::Other),
            ("List", _) => Some(Method::Later),
            _ => None,
        }
    }

    /// Returns the slots of the table that a module fills.
    fn filled(module: &Module) -> Vec<i32> {
        slots(module, function_table(module).expect("a table")).into_keys().collect()
    }

    #[test]
    fn functions_that_only_later_methods_need_are_moved() {
        let Split { first, later, moved } = split(&module(), method, |_| false).expect("split");
        assert_eq!(moved, ["List::draw", "List::content", "helper"].len());
        let [first, later] = [first, later].map(|wasm| parse(&wasm).expect("the module is valid"));
        assert_eq!([&first, &later].map(|module| module.funcs.iter_local().count()), [7, moved]);
        assert!(first.funcs.iter().chain(later.funcs.iter()).all(|function| function.name.is_none()));
        assert_eq!((first.data.iter().count(), later.data.iter().count()), (1, 0));
        // `List::size` is in the vtable of `Map`, and `List::is_small` may be in any.
        assert_eq!((filled(&first), filled(&later)), (vec![10, 11, 12, 13, 16], vec![14, 15]));
        // The second module imports the table, `shared` and `log`; no function uses the memory.
        let exports: HashSet<&str> = first.exports.iter().map(|export| export.name.as_str()).collect();
        assert!(["page", "memory", TABLE_EXPORT].iter().all(|name| exports.contains(name)), "{exports:?}");
        assert!(later.imports.iter().all(|import| import.module == IMPORT_MODULE && exports.contains(&*import.name)));
        assert_eq!(later.imports.iter().count(), 3);
    }

    #[test]
    fn functions_that_stay_are_not_moved() {
        let Split { later, moved, .. } = split(&module(), method, |name| name == "helper").expect("split");
        assert_eq!(moved, ["List::draw", "List::content"].len());
        // The table, `helper` and `shared`.
        assert_eq!(parse(&later).expect("the module is valid").imports.iter().count(), 3);
    }

    #[test]
    fn both_modules_are_of_one_build() {
        let imports = |wasm: &[u8]| {
            let later = split(wasm, method, |_| false).expect("split").later;
            parse(&later).expect("valid").imports.iter().map(|import| import.name.clone()).collect::<BTreeSet<_>>()
        };
        let mut other = Module::from_buffer(&module()).expect("valid");
        let page = other.exports.get_func("page").expect("an export");
        other.exports.add("other", page);
        assert_eq!(imports(&module()), imports(&module()));
        assert_ne!(imports(&module()), imports(&other.emit_wasm()));
    }

    #[test]
    fn missing_methods_are_errors() {
        let check = |method: &dyn Fn(&str) -> Option<Method>, expected: &str| {
            let error = split(&module(), method, |_| false).expect_err("a method is missing");
            assert!(error.contains(expected), "{error}");
        };
        check(&|name| method(name).filter(|method| *method != Method::Later), "no function");
        check(&|name| method(name).filter(|method| *method != Method::Unique), "no vtable");
        assert!(split(b"\0asm", method, |_| false).is_err());
    }

    #[test]
    fn names_are_short_and_unique() {
        let names: BTreeSet<String> = (0..800).map(short_name).collect();
        assert_eq!((names.len(), short_name(0), short_name(26)), (800, "a".to_owned(), "aa".to_owned()));
        assert_eq!(without_hash("a::b::h0123456789abcdef"), "a::b");
        assert_eq!(without_hash("a::host"), "a::host");
    }
}
