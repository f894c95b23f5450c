//! The card of a failed request: who held the memory.

use vramscope_insight::group::GroupBy;
use vramscope_viewer::ui::Tag;

use crate::testing::open;
use crate::testing::page::{draw_panes, text, visit};

#[test]
fn holders_on_the_card_of_a_failure_can_be_selected() {
    let mut session = open("tour/oom_frag.vram");
    let [_, pane] = draw_panes(&mut session, &["pane 1 failures"]);
    let shown = text(&pane.content);
    for part in
        ["requested 61.4 MiB", "cap about 3 GiB (inferred)", "free in its pool and stream", "releasable", "stuck"]
    {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let mut commands = Vec::new();
    visit(&pane.content, &mut |element| {
        if element.tag == Tag::Li {
            visit(&element.children, &mut |link| commands.extend(link.command.clone()));
        }
    });
    let block =
        commands.iter().find(|command| command.starts_with("select-allocation")).expect("a block is in the way");
    draw_panes(&mut session, &[block]);
    assert_eq!(session.model.state().event(), 447);
    assert!(session.model.selected().is_some(), "it is live when the request fails");
    let site = commands.iter().rev().find(|command| command.starts_with("group site")).expect("a site holds memory");
    draw_panes(&mut session, &[site]);
    let selected = session.model.selected_group();
    assert_eq!(selected.map(|(by, _)| by), Some(GroupBy::Site));
    assert!(session.model.state().event() > 447, "the last failure is a later one");
    draw_panes(&mut session, &[site]);
    assert_eq!(session.model.selected_group(), selected, "the site stays selected");
}
