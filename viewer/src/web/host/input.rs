//! Pointers, buttons, fields and files.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use wasm_bindgen::prelude::*;
use web_sys::{
    DragEvent, Element, Event, File, HtmlInputElement, HtmlSelectElement, KeyboardEvent, PointerEvent, WheelEvent,
};

use super::app::App;
use super::page_commands::{self, choose_file, run_text, toggle_help};
use super::panel::BANDS;
use super::render::{closest, command_of};
use super::{controls, dialogs, editor, history, key_presses, linked, splitters, start_page, storage};
use crate::bands::Band;
use crate::command::{Command, Direction};
use crate::model::PeakKind;
use crate::open::SaveFormat;
use crate::protocol::{Action, Pointer, PointerKind, Surface, ToEngine};

/// Name of the browser's stored setting that hides the hints for new users.
const HINTS: &str = "hints";

/// Registers all listeners for pointer, keyboard, buttons, files, and changes of the address.
pub(super) fn listen(app: &App) -> Result<(), JsValue> {
    for surface in Surface::ALL {
        listen_to_picture(app, surface)?;
    }
    listen_to_buttons(app)?;
    listen_to_fields(app)?;
    listen_to_content(app)?;
    listen_to_files(app)?;
    controls::listen(app)?;
    dialogs::listen(app, run_text)?;
    key_presses::listen(app)?;
    editor::listen(app)?;
    page_commands::listen_to_theme(app)?;
    splitters::listen(app)?;
    history::listen(app)
}

/// Converts the wheel's movement (horizontal, vertical) to CSS pixels.
fn wheel_pixels(event: &WheelEvent) -> (f64, f64) {
    let unit = match event.delta_mode() {
        WheelEvent::DOM_DELTA_LINE => 16.0,
        WheelEvent::DOM_DELTA_PAGE => 400.0,
        _ => 1.0,
    };
    (event.delta_x() * unit, event.delta_y() * unit)
}

/// The fingers on a picture: the browser's number of each, and its position (x, y) in CSS pixels.
type Fingers = Rc<RefCell<Vec<(i32, f64, f64)>>>;

/// Returns the distance between the first two fingers and the point in their middle, in CSS pixels;
/// `None` with fewer fingers.
fn spread(fingers: &[(i32, f64, f64)]) -> Option<(f64, (f64, f64))> {
    let [(_, x0, y0), (_, x1, y1), ..] = *fingers else { return None };
    Some(((x1 - x0).hypot(y1 - y0).max(1.0), (f64::midpoint(x0, x1), f64::midpoint(y0, y1))))
}

/// Registers the listeners of a picture: pointers, two fingers and the wheel.
fn listen_to_picture(app: &App, surface: Surface) -> Result<(), JsValue> {
    let canvas = &app.page.pictures[surface as usize];
    let fingers = Fingers::default();
    let is_pinching = Rc::new(Cell::new(false));
    for (name, kind) in [
        ("pointerdown", PointerKind::Down),
        ("pointermove", PointerKind::Move),
        ("pointerup", PointerKind::Up),
        ("pointercancel", PointerKind::Leave),
        ("pointerleave", PointerKind::Leave),
    ] {
        let (fingers, is_pinching) = (fingers.clone(), is_pinching.clone());
        app.on(canvas, name, move |app: &App, event: PointerEvent| {
            if kind == PointerKind::Down {
                // Without the capture, dragging merely ends at the picture's edge.
                let _ = app.page.pictures[surface as usize].set_pointer_capture(event.pointer_id());
            }
            let before = spread(&fingers.borrow());
            if event.pointer_type() == "touch" {
                track_finger(&mut fingers.borrow_mut(), kind, &event);
            }
            let after = spread(&fingers.borrow());
            if let Some((distance, (x, y))) = after {
                is_pinching.set(true);
                // A finger that lands or lifts changes nothing.
                let before = before.filter(|_| kind == PointerKind::Move);
                let factor = before.map_or(1.0, |(before, _)| distance / before);
                send(app, surface, PointerKind::Pinch(factor), (x as i32, y as i32), &event);
                return;
            }
            // The finger that stays after the other was lifted does not begin to drag.
            if is_pinching.get() {
                is_pinching.set(!fingers.borrow().is_empty());
                return;
            }
            send(app, surface, kind, (event.offset_x(), event.offset_y()), &event);
        })?;
    }
    app.on(canvas, "dblclick", move |app: &App, event: web_sys::MouseEvent| {
        send(app, surface, PointerKind::DoubleClick, (event.offset_x(), event.offset_y()), &event);
    })?;
    app.on(canvas, "wheel", move |app: &App, event: WheelEvent| {
        event.prevent_default();
        let (dx, dy) = wheel_pixels(&event);
        send(app, surface, PointerKind::Wheel(dx, dy), (event.offset_x(), event.offset_y()), &event);
    })
}

/// Updates the list of fingers on a picture for a pointer event of kind `kind`.
fn track_finger(fingers: &mut Vec<(i32, f64, f64)>, kind: PointerKind, event: &PointerEvent) {
    let finger = (event.pointer_id(), f64::from(event.offset_x()), f64::from(event.offset_y()));
    let known = fingers.iter().position(|(id, ..)| *id == finger.0);
    match (kind, known) {
        (PointerKind::Down, None) => fingers.push(finger),
        (PointerKind::Down | PointerKind::Move, Some(index)) => fingers[index] = finger,
        (PointerKind::Up | PointerKind::Leave, Some(index)) => drop(fingers.remove(index)),
        _ => {}
    }
}

/// Sends a pointer event at a position in CSS pixels to the engine.
fn send(app: &App, surface: Surface, kind: PointerKind, (x, y): (i32, i32), event: &web_sys::MouseEvent) {
    let (x, y) = app.state.borrow().display.pixels(x, y);
    let is_touch = event.dyn_ref::<PointerEvent>().is_some_and(|event| event.pointer_type() == "touch");
    app.act(Action::Pointer(Pointer {
        surface,
        kind,
        x,
        y,
        shift: event.shift_key() || event.button() == 1,
        ctrl: event.ctrl_key() || event.meta_key(),
        alt: event.alt_key(),
        is_touch,
    }));
}

/// The buttons of the page: element id, and the command that a click runs.
static BUTTONS: [(&str, Command); 10] = [
    ("home", Command::GoToEdge(Direction::Back)),
    ("end", Command::GoToEdge(Direction::Forward)),
    ("back", Command::Step(-1)),
    ("forward", Command::Step(1)),
    ("play", Command::Play),
    ("peak", Command::GoToPeak(PeakKind::Allocated)),
    ("peak-reserved", Command::GoToPeak(PeakKind::Reserved)),
    ("fit", Command::FitAll),
    ("live", Command::Follow),
    ("load-all", Command::LoadAll),
];

/// Registers the listeners of all buttons outside of the panes and of the panel with the program's
/// commands.
fn listen_to_buttons(app: &App) -> Result<(), JsValue> {
    for (button, command) in &BUTTONS {
        app.on_button(button, move |app| app.command(command.clone()))?;
    }
    for (band, [_, button, _]) in Band::ALL.into_iter().zip(BANDS) {
        app.on_button(button, move |app| app.command(Command::Band(band)))?;
    }
    app.on_button("help-button", |app| toggle_help(&app.page))?;
    app.on_button("open", choose_file)?;
    app.on_button("save", |app| page_commands::save(app, SaveFormat::Recording))?;
    app.on_button("empty-open", choose_file)?;
    app.on_button("progress-cancel", |app| app.send_with(&ToEngine::CancelOpening, &[]))?;
    app.page.set_hidden("hints", !storage::load(HINTS).is_empty());
    app.on_button("hints-close", |app| {
        storage::store(HINTS, "read");
        app.page.set_hidden("hints", true);
    })?;
    app.on_button("message-close", |app| {
        app.page.hide_message();
    })
}

/// Registers the listeners of the speed, device and event fields.
fn listen_to_fields(app: &App) -> Result<(), JsValue> {
    let page = &app.page;
    app.on(&page.speed, "change", |app: &App, _: Event| {
        app.command(Command::Speed(usize::try_from(app.page.speed.selected_index()).unwrap_or(0)))
    })?;
    app.on(&page.device, "change", |app: &App, _: Event| {
        run_text(app, &format!("device {}", app.page.device.value()))
    })?;
    app.on(&page.event, "change", |app: &App, _: Event| {
        run_text(app, &format!("seek {}", app.page.event.value()));
        let _ = app.page.event.blur();
    })?;
    app.on(&page.event, "keydown", |app: &App, event: KeyboardEvent| {
        if event.key() == "Escape" {
            // Anything but a number restores the field. Emptied first: leaving the field would go
            // to the number in it.
            app.page.event.set_value("");
            app.command(Command::Seek(None));
            let _ = app.page.event.blur();
        }
    })
}

/// Returns true if an event is for a link, which the browser follows.
fn is_link(event: &Event) -> bool {
    closest(event, "*").is_some_and(|target| target.tag_name() == "A")
}

/// Returns the value of a field, or `None` for other elements.
fn value_of(element: &Element) -> Option<String> {
    let select = element.dyn_ref::<HtmlSelectElement>().map(HtmlSelectElement::value);
    select.or_else(|| element.dyn_ref::<HtmlInputElement>().map(HtmlInputElement::value))
}

/// Registers the listeners of the panes' and the details panel's content: clicks, changed fields
/// and scrolling.
fn listen_to_content(app: &App) -> Result<(), JsValue> {
    let page = &app.page;
    let others =
        [&page.verdict, &page.details, &page.timeline_bar, &page.element("empty")?, &page.element("save-menu")?];
    let panes = page.panes.iter().flat_map(|pane| [&pane.controls, &pane.legend, &pane.content]);
    for root in panes.chain(others) {
        linked::listen(app, root)?;
        app.on(root, "click", |app: &App, event: Event| {
            if let Some((element, command)) = command_of(&event)
                && value_of(&element).is_none()
                && !is_link(&event)
            {
                run_text(app, &command);
                close_export(app);
            }
        })?;
        app.on(root, "change", |app: &App, event: Event| {
            if let Some((element, command)) = command_of(&event)
                && let Some(value) = value_of(&element)
            {
                run_text(app, &format!("{command} {value}"));
            }
        })?;
        app.on(root, "keydown", |app: &App, event: KeyboardEvent| {
            let is_row = |element: &Element| element.tag_name() == "TR" || element.tag_name() == "LI";
            if matches!(event.key().as_str(), "Enter" | " ")
                && let Some((element, command)) = command_of(&event)
                && is_row(&element)
                && !is_link(&event)
            {
                event.prevent_default();
                event.stop_propagation();
                run_text(app, &command);
            }
        })?;
    }
    app.on(&page.document, "pointerdown", |app: &App, event: Event| {
        if closest(&event, "details.export").is_none() {
            close_export(app);
        }
    })?;
    for (pane, elements) in page.panes.iter().enumerate() {
        app.on(&elements.content, "scroll", move |app: &App, _: Event| app.scrolled(pane))?;
    }
    Ok(())
}

/// Closes the open export menu of a pane.
fn close_export(app: &App) {
    // Fails only for invalid attribute names.
    let _ = app.page.query("details.export[open]").map(|menu| menu.remove_attribute("open"));
}

/// Compares the recording on the page, which has just been opened, with the second of several
/// dropped files.
pub(super) fn compare_dropped(app: &App) {
    let Some((second, count)) = app.second_file.take() else { return };
    compare_file(app, &second);
    if count > 2 {
        app.page.show_message(&format!("Only two of {count} files are open: the second is compared with the first."));
    }
}

/// Compares the recording on the page with a file.
fn compare_file(app: &App, file: &File) {
    let number = app.state.borrow_mut().history.keep_file(file);
    app.send_with(&ToEngine::CompareFile(number), &[file.into()]);
    app.want_frame();
}

/// Registers the listeners for choosing a file and for dropping one on the page.
fn listen_to_files(app: &App) -> Result<(), JsValue> {
    let document = &app.page.document;
    app.on(&app.page.file, "change", |app: &App, _: Event| {
        let Some(chosen) = app.page.file.files().and_then(|files| files.get(0)) else { return };
        if app.is_choosing_second.take() {
            compare_file(app, &chosen);
        } else {
            page_commands::open_file(app, &chosen);
        }
    })?;
    for name in ["dragenter", "dragover"] {
        app.on(document, name, |app: &App, event: DragEvent| {
            event.prevent_default();
            app.page.drop_overlay.set_hidden(false);
        })?;
    }
    app.on(document, "dragleave", |app: &App, event: DragEvent| {
        // There is a related target when the pointer moves to another element of the page.
        if event.related_target().is_none() {
            app.page.drop_overlay.set_hidden(true);
        }
    })?;
    app.on(document, "drop", |app: &App, event: DragEvent| {
        event.prevent_default();
        app.page.drop_overlay.set_hidden(true);
        let Some(data) = event.data_transfer() else { return };
        // The list of files is empty after the event.
        let files = data.files();
        let second = files.as_ref().and_then(|files| files.get(1));
        let count = files.map_or(0, |files| files.length());
        if let Some(dropped) = start_page::dropped(app, &data) {
            page_commands::open_file(app, &dropped);
        }
        *app.second_file.borrow_mut() = second.map(|second| (second, count));
    })
}
