//! Converts pickles to JSON with a separate, minimal reader for well-formed pickles of plain data.

use std::cell::RefCell;
use std::rc::Rc;

use serde_json::{Map, Number, Value};

#[derive(Clone)]
enum Item {
    Plain(Value),
    List(Rc<RefCell<Vec<Item>>>),
    Dict(Rc<RefCell<Vec<Item>>>),
    Mark,
}

impl Item {
    /// Returns the value without the key `omitted_key`.
    fn json(&self, omitted_key: &str) -> Value {
        match self {
            Self::Plain(value) => value.clone(),
            Self::List(items) => Value::Array(items.borrow().iter().map(|item| item.json(omitted_key)).collect()),
            Self::Dict(items) => {
                let items = items.borrow();
                let pairs =
                    items.chunks(2).map(|pair| (text(&pair[0]), &pair[1])).filter(|(key, _)| key != omitted_key);
                Value::Object(pairs.map(|(key, value)| (key, value.json(omitted_key))).collect::<Map<_, _>>())
            }
            Self::Mark => panic!("a mark is not a value"),
        }
    }
}

fn text(item: &Item) -> String {
    match item {
        Item::Plain(Value::String(text)) => text.clone(),
        _ => panic!("a key is not a string"),
    }
}

fn number(bytes: &[u8]) -> i64 {
    let sign = if bytes.last().is_some_and(|&byte| byte >= 0x80) { -1 } else { 0 };
    bytes.iter().rev().fold(sign, |number, &byte| number << 8 | i64::from(byte))
}

fn fill(stack: &mut Vec<Item>, from: usize) {
    let items = stack.split_off(from);
    match stack.last() {
        Some(Item::List(list) | Item::Dict(list)) => list.borrow_mut().extend(items),
        _ => panic!("no container to fill"),
    }
}

fn pop_mark(stack: &mut Vec<Item>) -> usize {
    let mark = stack.iter().rposition(|item| matches!(item, Item::Mark)).expect("a mark is open");
    stack.remove(mark);
    mark
}

/// Converts a pickle to JSON.
pub(crate) fn to_json(bytes: &[u8]) -> Value {
    read(bytes).json("")
}

/// Converts a pickle to JSON without call stacks, which are most of it.
pub(crate) fn to_json_without_frames(bytes: &[u8]) -> Value {
    read(bytes).json("frames")
}

fn read(bytes: &[u8]) -> Item {
    let mut rest = bytes;
    let mut take = |len: usize| rest.split_off(..len).expect("the pickle is complete");
    let (mut stack, mut memo) = (Vec::<Item>::new(), Vec::<Item>::new());
    let plain = |value: Value| Item::Plain(value);
    loop {
        match take(1)[0] {
            b'.' => return stack.pop().expect("the stack has a value"),
            0x80 => drop(take(1)),
            0x95 => drop(take(8)),
            b'(' => stack.push(Item::Mark),
            b'}' => stack.push(Item::Dict(Rc::default())),
            b']' => stack.push(Item::List(Rc::default())),
            0x94 => memo.push(stack.last().expect("the stack has a value").clone()),
            b'h' => stack.push(memo[usize::from(take(1)[0])].clone()),
            b'j' => stack.push(memo[u32::from_le_bytes(take(4).try_into().expect("4 bytes")) as usize].clone()),
            b'K' => stack.push(plain(take(1)[0].into())),
            b'M' => stack.push(plain(u16::from_le_bytes(take(2).try_into().expect("2 bytes")).into())),
            b'J' => stack.push(plain(number(take(4)).into())),
            0x8a => {
                let len = usize::from(take(1)[0]);
                stack.push(plain(number(take(len)).into()));
            }
            b'G' => {
                let float = f64::from_be_bytes(take(8).try_into().expect("8 bytes"));
                stack.push(plain(Number::from_f64(float).map_or(Value::Null, Value::Number)));
            }
            0x8c => {
                let len = usize::from(take(1)[0]);
                stack.push(plain(String::from_utf8_lossy(take(len)).into()));
            }
            b'X' => {
                let len = u32::from_le_bytes(take(4).try_into().expect("4 bytes")) as usize;
                stack.push(plain(String::from_utf8_lossy(take(len)).into()));
            }
            b'N' => stack.push(plain(Value::Null)),
            0x88 => stack.push(plain(true.into())),
            0x89 => stack.push(plain(false.into())),
            0x86 => {
                let items = stack.split_off(stack.len() - 2);
                stack.push(Item::List(Rc::new(RefCell::new(items))));
            }
            b'a' => {
                let from = stack.len() - 1;
                fill(&mut stack, from);
            }
            b's' => {
                let from = stack.len() - 2;
                fill(&mut stack, from);
            }
            b'e' | b'u' => {
                let from = pop_mark(&mut stack);
                fill(&mut stack, from);
            }
            opcode => panic!("0x{opcode:02x} is not expected in these pickles"),
        }
    }
}
