//! Writes pickles.

use std::collections::HashMap;

use serde_json::Value;

/// Pickles a value with protocol 4 as Python does: everything but numbers is memoized, and a string
/// is written once.
pub(crate) fn pickled(value: &Value) -> Vec<u8> {
    let mut pickler = Pickler { out: b"\x80\x04".to_vec(), strings: HashMap::new(), slots: 0 };
    pickler.put(value);
    pickler.out.push(b'.');
    pickler.out
}

struct Pickler {
    out: Vec<u8>,
    strings: HashMap<String, u32>,
    slots: u32,
}

impl Pickler {
    fn memoize(&mut self) {
        self.out.push(0x94);
        self.slots += 1;
    }

    fn text(&mut self, text: &str) {
        match self.strings.get(text) {
            Some(slot) => {
                self.out.push(b'j');
                self.out.extend(slot.to_le_bytes());
            }
            None => {
                self.strings.insert(text.to_owned(), self.slots);
                self.out.extend([0x8c, u8::try_from(text.len()).expect("strings are shorter than 256 bytes")]);
                self.out.extend(text.as_bytes());
                self.memoize();
            }
        }
    }

    fn put(&mut self, value: &Value) {
        match value {
            Value::Null => self.out.push(b'N'),
            Value::Bool(value) => self.out.push(if *value { 0x88 } else { 0x89 }),
            Value::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(number), _) => {
                    self.out.extend([0x8a, 8]);
                    self.out.extend(number.to_le_bytes());
                }
                (None, Some(number)) => {
                    self.out.extend([0x8a, 9]);
                    self.out.extend(number.to_le_bytes());
                    self.out.push(0);
                }
                (None, None) => {
                    self.out.push(b'G');
                    self.out.extend(number.as_f64().expect("the value is a number").to_be_bytes());
                }
            },
            Value::String(text) => self.text(text),
            Value::Array(values) => {
                self.out.push(b']');
                self.memoize();
                self.out.push(b'(');
                values.iter().for_each(|value| self.put(value));
                self.out.push(b'e');
            }
            Value::Object(values) => {
                self.out.push(b'}');
                self.memoize();
                self.out.push(b'(');
                for (key, value) in values {
                    self.text(key);
                    self.put(value);
                }
                self.out.push(b'u');
            }
        }
    }
}
