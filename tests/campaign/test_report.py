"""The page of the reliability campaign is made from its log."""

from campaign.report import PAGE, page


def test_the_page_is_up_to_date_with_the_log():
    assert PAGE.read_text(encoding="utf-8") == page()
    assert "{" not in page()
