//! Definitions and annotations as bytes, and back.
//!
//! A chunk of definitions says how many of each kind came before it, so that one which repeats what a reader has (a newcomer's
//! greeting, sent to someone who was here before) is understood.

use crate::event::Annotation;
use crate::event_code::{read_device, read_stage, stage_code};
use crate::site::{Category, Definition, Definitions, Frame, FrameId, Site, Stack, StackId, StringId};
use crate::varint::{self, Malformed, Reader};

/// How many definitions of each kind there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DefinitionCounts([u64; 4]);

const fn kind_of(definition: &Definition) -> usize {
    match definition {
        Definition::String(_) => 0,
        Definition::Frame(_) => 1,
        Definition::Stack(_) => 2,
        Definition::Site(_) => 3,
    }
}

impl DefinitionCounts {
    pub(crate) fn add(&mut self, definition: &Definition) {
        self.0[kind_of(definition)] += 1;
    }
}

/// Begins a chunk's payload.
pub(crate) fn put_counts(out: &mut Vec<u8>, before: DefinitionCounts) {
    for count in before.0 {
        varint::put(out, count);
    }
}

/// Appends one definition.
pub(crate) fn put_definition(out: &mut Vec<u8>, definition: &Definition) {
    out.push(kind_of(definition) as u8);
    match definition {
        Definition::String(text) => varint::put_text(out, text),
        Definition::Frame(frame) => {
            for part in [frame.function.0, frame.file.0, frame.line] {
                varint::put(out, u64::from(part));
            }
        }
        Definition::Stack(stack) => {
            varint::put(out, u64::from(stack.frame.0));
            varint::put(out, u64::from(stack.caller.0));
        }
        Definition::Site(site) => {
            varint::put(out, u64::from(site.stack.0));
            varint::put(out, u64::from(site.scope.0));
            out.push(site.category as u8);
        }
    }
}

/// Adds a chunk's definitions to `known`; `each` sees those that are new.
pub(crate) fn read_definitions(
    payload: &[u8],
    known: &mut DefinitionCounts,
    definitions: &mut Definitions,
    mut each: impl FnMut(&Definition),
) -> Result<(), Malformed> {
    let mut reader = Reader::new(payload);
    let mut at = [0; 4];
    for (count, known) in at.iter_mut().zip(known.0) {
        *count = reader.u64()?;
        if *count > known {
            return Err(reader.malformed("definitions are missing before these"));
        }
    }
    while reader.remaining() > 0 {
        let definition = read_definition(&mut reader)?;
        let kind = kind_of(&definition);
        at[kind] += 1;
        if at[kind] > known.0[kind] {
            known.0[kind] = at[kind];
            each(&definition);
            definitions.define(definition);
        }
    }
    Ok(())
}

fn read_definition(reader: &mut Reader<'_>) -> Result<Definition, Malformed> {
    Ok(match reader.byte()? {
        0 => Definition::String(reader.text()?.to_owned()),
        1 => Definition::Frame(Frame {
            function: StringId(reader.u32()?),
            file: StringId(reader.u32()?),
            line: reader.u32()?,
        }),
        2 => Definition::Stack(Stack { frame: FrameId(reader.u32()?), caller: StackId(reader.u32()?) }),
        3 => {
            let (stack, scope) = (StackId(reader.u32()?), StringId(reader.u32()?));
            let category = Category::ALL.get(usize::from(reader.byte()?)).copied();
            let category = category.ok_or(reader.malformed("an unknown category"))?;
            Definition::Site(Site { stack, scope, category })
        }
        _ => return Err(reader.malformed("an unknown kind of definition")),
    })
}

/// Appends one annotation.
pub(crate) fn put_annotation(out: &mut Vec<u8>, annotation: &Annotation) {
    varint::put(out, u64::from(annotation.device.0));
    varint::put(out, annotation.time_ns);
    varint::put(out, annotation.at_event);
    out.push(stage_code(annotation.stage));
    varint::put(out, u64::from(annotation.name.0));
}

/// Reads a chunk's annotations.
pub(crate) fn read_annotations(payload: &[u8], mut each: impl FnMut(Annotation)) -> Result<(), Malformed> {
    let mut reader = Reader::new(payload);
    while reader.remaining() > 0 {
        each(Annotation {
            device: read_device(&mut reader)?,
            time_ns: reader.u64()?,
            at_event: reader.u64()?,
            stage: read_stage(&mut reader)?,
            name: StringId(reader.u32()?),
        });
    }
    Ok(())
}
