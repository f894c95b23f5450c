//! What scripts get from the page, and how much is checked.

use serde_json::{Value, json};
use vramscope_tests::Page;
use vramscope_trace::DeviceId;

/// Returns true if everything is checked, which takes most of an hour.
pub(super) fn is_full() -> bool {
    std::env::var_os("VRAMSCOPE_FULL").is_some()
}

/// Returns how many things to check: `few`, or `many` in a full run.
pub(super) fn count_of(few: usize, many: usize) -> usize {
    if is_full() { many } else { few }
}

/// Returns the number in a field of a row; `None` if it is empty or missing.
pub(super) fn number(row: &Value, field: &str) -> Option<u64> {
    row[field].as_u64()
}

/// Returns the sum of a field of all rows.
pub(super) fn sum(rows: &[Value], field: &str) -> u64 {
    rows.iter().filter_map(|row| number(row, field)).sum()
}

/// Returns the address in a row.
pub(super) fn address(row: &Value) -> u64 {
    let digits = row["address"].as_str().and_then(|text| text.strip_prefix("0x")).unwrap_or_default();
    u64::from_str_radix(digits, 16).unwrap_or_else(|_| panic!("{row} has no address"))
}

/// Returns the rows of views, each named with its options.
pub(super) fn rows(page: Page<'_>, queries: &[(&str, Value)]) -> Vec<Vec<Value>> {
    let script = "const all = [];
        for (const [view, options] of arguments[0]) all.push(await window.vramscope.rows(view, options));
        return all;";
    page.json_of(script, &[json!(queries)])
}

/// Shows a device on the page.
pub(super) fn show_device(page: Page<'_>, device: DeviceId) {
    if page.state().device == device.0 {
        return;
    }
    page.run(&format!(
        "const field = document.getElementById('device');
         field.value = '{}';
         field.dispatchEvent(new Event('change'));",
        device.0
    ));
    page.wait_until("the device is shown", |state| state.device == device.0);
}
