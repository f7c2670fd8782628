"""What a picture must keep, and must not keep, when it is drawn again; and drawings that overtake one another."""

from __future__ import annotations

import pytest
from browser_page import Look

pytestmark = [pytest.mark.long, pytest.mark.page]


def test_a_drawing_that_failed_does_not_keep_the_next_one_from_being_drawn(look: Look):
    look.show("run", run=look.run_id("net"), landscape="plane", kind="topographic")
    look.page.evaluate(
        "() => { const react = Plotly.react;"
        " Plotly.react = () => { Plotly.react = react; return Promise.reject(new Error('no room')); }; }"
    )
    panel = look.page.locator("aside.panel")
    panel.get_by_role("button", name="Logarithmic").click()
    look.until("document.querySelector('.figure').innerText.includes('no room')")
    panel.get_by_role("button", name="Linear").click()
    look.until("document.querySelector('.figure .plot[data-drawn]') && landscapePage.view.figure")
    assert look.colours() > 20
