//! The view "Who holds it": names of sites, and its filter.

use serde_json::Value;
use vramscope_viewer::protocol::Surface;

use crate::testing::open;
use crate::testing::page::{draw_panes, text};
use crate::testing::rows::{rows, sum};

#[test]
fn own_line_comes_first_in_the_name_of_a_site() {
    let mut session = open("tour/gpt_varlen.vram");
    let sites = rows(&mut session, "sites", r#"{"by": "site"}"#);
    assert!(sites.iter().any(|row| row["name"] == "train.py:65 · cross_entropy"), "{sites:?}");
}

#[test]
fn filter_of_sites_keeps_matching_rows_and_dims_other_blocks() {
    let mut session = open("tour/gpt_varlen.vram");
    let blocks = rows(&mut session, "blocks", "{}");
    let large: Vec<Value> = blocks.into_iter().filter(|block| block["bytes"].as_u64() > Some(50 << 20)).collect();
    for options in [r#"{"filter": ">50MiB"}"#, r#"{"filter": ">50MiB", "mode": "peak"}"#] {
        let kept = rows(&mut session, "sites", options);
        assert_eq!((sum(&kept, "bytes"), sum(&kept, "blocks")), (sum(&large, "bytes"), large.len() as u64));
    }
    let all = rows(&mut session, "sites", r#"{"mode": "range", "from": 100, "to": 9000}"#);
    let kept = rows(&mut session, "sites", r#"{"mode": "range", "from": 100, "to": 9000, "filter": ">50MiB"}"#);
    let others = rows(&mut session, "sites", r#"{"mode": "range", "from": 100, "to": 9000, "filter": "-size>50MiB"}"#);
    assert_eq!(sum(&kept, "allocations") + sum(&others, "allocations"), sum(&all, "allocations"));
    assert!(session.rows("sites", r#"{"filter": "size>"}"#).expect_err("invalid").contains("filter"));

    for view in ["device", "allocations"] {
        draw_panes(&mut session, &[&format!("pane 0 {view}"), "pane 1 sites", "filter sites "]);
        let plain = session.pixels(Surface::Left).to_vec();
        let [_, sites] = draw_panes(&mut session, &["filter sites >50MiB"]);
        assert!(text(&sites.content).contains("size more than 50 MiB"), "{}", text(&sites.content));
        assert_ne!(session.pixels(Surface::Left), plain, "{view}: others are dim");
        draw_panes(&mut session, &["filter sites "]);
        assert_eq!(session.pixels(Surface::Left), plain, "{view}");
    }
}
