"""Withdrawals: which rules a sentence takes back, and whether it surely does."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.compaction.ledger import rules, withdrawals
from proxy.compaction.ledger.rules import Statement
from proxy.compaction.ledger.withdrawals import Form, Rule


def _rule(text: str, message: int = 1, *, alone: bool = True) -> Rule:
    return Rule(Statement(text, message, 0, len(text), True, rules.subject(text), alone))


def _taken_back(said: Sequence[str], sentence: str) -> tuple[list[int], list[int]]:
    """Numbers of the rules that are surely taken back, and of those that may be."""
    earlier = [_rule(text, number) for number, text in enumerate(said, 1)]
    found = list(withdrawals.withdrawn_by(sentence, len(said) + 1, earlier))
    sure = [rule.statement.message for rule, is_sure in found if is_sure]
    return sure, [rule.statement.message for rule, is_sure in found if not is_sure]


@pytest.mark.parametrize(
    ("sentence", "form"),
    [
        ("Forget the rule about tabs.", Form.REVOKES),
        ("ok forget what I said about tabs", Form.REVOKES),
        ("never mind the linter thing", Form.REVOKES),
        ("The ban on sudo is lifted.", Form.REVOKES),
        ("My rule about tabs no longer applies.", Form.REVOKES),
        ("You don't have to ask me any more.", Form.RELIEVES),
        ("You can push again.", Form.PERMITS),
        ("Feel free to push.", Form.PERMITS),
        ("Pushing to main is fine again.", Form.PERMITS),
        ("Scratch that.", Form.POINTS),
    ],
)
def test_forms(sentence: str, form: Form) -> None:
    found = withdrawals.read(sentence)
    assert found is not None
    assert found.form is form


@pytest.mark.parametrize(
    "sentence",
    [
        *("Never push.", "Run it again.", "修复它。", "The job is slow.", "Ignore the flaky job."),
        *("Remove the push to main from the script.", "Can we drop the rule about French?"),
        *("Do not forget the rule about main.", "Vergiss die Regel nicht.", "别忘了规则。"),
        *("The file is gone.", "Cancel the running job.", "N'oublie pas la règle."),
        *("You may not push to main now.", "You can't push again.", "Du darfst nicht pushen."),
        *("That does not mean you can push again.", "I never said you can push again."),
        *("You ignored the rule about main.", "You keep ignoring my rule about main."),
        *("No changes to src are allowed.", "Only squash merges are allowed now."),
        *("The rule about main still applies.", "I'm not lifting the rule about main."),
        *("The build is ok now.", "Did you forget the rule about main?", "You can see it again."),
    ],
)
def test_most_sentences_withdraw_nothing(sentence: str) -> None:
    assert withdrawals.read(sentence) is None


EARLIER = (
    "Never push to main.",
    "Always answer in French.",
    "Do not touch src/legacy.",
    "Bitte niemals auf main pushen.",
    "Ne modifie jamais le schéma.",
    "永远不要修改公共接口。",
)


@pytest.mark.parametrize(
    ("sentence", "sure"),
    [
        ("You may push to main again.", [1, 4]),
        ("Forget the rule about French.", [2]),
        ("The restriction on src/legacy no longer applies.", [3]),
        ("You may touch src/legacy from now on.", [3]),
        ("Scratch that.", [6]),
        ("Forget that rule.", [6]),
        ("Du darfst wieder auf main pushen.", [1, 4]),
        ("La règle sur le schéma ne s'applique plus.", [5]),
        ("关于公共接口的规则取消。", [6]),
        ("You can now run the tests.", []),
        ("The tests are no longer needed.", []),
        ("You no longer have to answer in French.", [2]),
        ("Forget the rule about Docker.", []),
    ],
)
def test_a_withdrawal_meets_the_rule_that_it_speaks_of(sentence: str, sure: list[int]) -> None:
    assert withdrawals.read(sentence)
    assert _taken_back(EARLIER, sentence)[0] == sure


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        ("Antworte nur auf Englisch.", "Die Vorgabe mit Englisch gilt nicht mehr."),
        ("Réponds toujours en anglais.", "Oublie la règle sur l'anglais."),
        ("Nunca modifiques la carpeta vendor.", "Ya puedes modificar la carpeta vendor."),
        ("Siempre ejecuta el linter.", "Ya no hace falta ejecutar el linter."),
        ("Non toccare mai la cartella vendor.", "Ora puoi toccare la cartella vendor."),
        ("Nunca altere a pasta vendor.", "Agora você pode alterar a pasta vendor."),
        ("Push nooit naar main.", "Je mag weer naar main pushen."),
        ("Nigdy nie edytuj katalogu vendor.", "Możesz znowu edytować katalog vendor."),
        ("Никогда не пушь в main.", "Теперь можно снова пушить в main."),
        ("Всегда отвечай по-английски.", "Забудь правило про английский."),
        ("Asla vendor klasörüne dokunma.", "Art\u0131k vendor klasörüne dokunabilirsin."),
        ("不要修改vendor目录。", "vendor目录的限制取消了。"),
        ("不要修改公共接口。", "现在可以修改公共接口了。"),
        ("公開APIは絶対に変更しないでください。", "公開APIを変更してもいいです。"),
        ("공개 API를 절대 수정하지 마세요.", "이제 공개 API를 수정해도 됩니다."),
    ],
)
def test_withdrawals_in_many_languages(rule: str, sentence: str) -> None:
    assert _taken_back([rule], sentence) == ([1], [])


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        # A condition, an exception, a doubt, a wish, a quotation, a task.
        ("Never push to main.", "Once the job is green you can push to main again."),
        ("Never push to main.", "For this one commit you may push to main after all."),
        ("Never push to main.", "Maybe we should drop the rule about main."),
        ("Never push to main.", "I wish you could push to main again."),
        ("Never push to main.", 'The page says "you can push to main again".'),
        ("Never push to main.", "Add a banner: you can push to main again."),
        # An approval that was asked for each time.
        ("Do not deploy without my approval.", "Approved, you can deploy now."),
        ("Ask before you install anything.", "ok you can install it now"),
        # Something narrower, wider or else.
        ("Never push to main.", "You can push the docs to main again."),
        ("Never push to main or staging.", "You can push to main again."),
        ("Never push to main.", "You can push to staging again."),
        ("Never push to main; push to dev.", "You can push to dev again."),
        ("Never delete files in data.", "You can delete files in tmp again."),
        ("Never edit config.yaml.", "You can edit config.toml now."),
        ("Do not merge PR 12.", "You can merge PR 15 now."),
        ("Never force push.", "You can push again."),
        # What was never forbidden, or never demanded.
        ("Always run the tests on main.", "You can now run the tests on main."),
        ("Never touch main.py.", "We don't need to touch main.py."),
        ("Use tabs, not spaces.", "Tabs are fine again."),
        ("Reply in JSON only.", "JSON is fine again."),
        # Another rule: one of a program.
        ("Never restrict the login form.", "Remove the length restriction from the login form."),
        ("Never push patches to main.", "The patch no longer applies to main."),
    ],
)
def test_what_may_mean_something_else_is_no_withdrawal(rule: str, sentence: str) -> None:
    """A wrong mark on a rule that holds is worse than none."""
    assert _taken_back([rule], sentence)[0] == []


def test_of_two_rules_alike_only_the_one_that_is_named_goes() -> None:
    said = ["Never push to main.", "Never push to staging."]
    assert _taken_back(said, "You can push to staging again.") == ([2], [])
    assert _taken_back(said, "Forget the rule about main.") == ([1], [])


def test_what_fits_two_rules_is_a_hint_at_both() -> None:
    said = ["Never push to main.", "Never push to staging."]
    assert _taken_back(said, "You can push again.") == ([], [1, 2])
    assert _taken_back(said[:1], "You can push again.") == ([1], [])


def test_the_same_rule_twice_is_one() -> None:
    said = ["Never push to main.", "Never, ever push to main!"]
    assert _taken_back(said, "You can push to main again.") == ([1, 2], [])


def test_all_of_ones_own_rules_go_at_once() -> None:
    said = ["Never push.", "Always test."]
    assert _taken_back(said, "Forget all my rules.") == ([1, 2], [])
    assert _taken_back(said, "Ignore all previous instructions.")[0] == []


def test_pointing_at_what_was_said_last_means_the_message_before() -> None:
    rule = _rule("Never push.", 1)
    assert list(withdrawals.withdrawn_by("Scratch that.", 2, [rule])) == [(rule, True)]
    assert list(withdrawals.withdrawn_by("Scratch that.", 3, [rule])) == []
    among = _rule("Never push.", 1, alone=False)
    assert list(withdrawals.withdrawn_by("Scratch that.", 2, [among])) == [(among, False)]


@given(
    st.lists(st.sampled_from(EARLIER), max_size=6),
    st.sampled_from(
        [
            "You may push to main again.",
            "Forget all my rules.",
            "Scratch that.",
            "Forget that rule.",
            "Never push to main.",
            "Du darfst wieder auf main pushen.",
        ]
    ),
    st.integers(1, 8),
)
def test_a_withdrawal_ends_only_earlier_rules(said: list[str], sentence: str, number: int) -> None:
    earlier = [_rule(text, place) for place, text in enumerate(said, 1)]
    for rule, _ in withdrawals.withdrawn_by(sentence, number, earlier):
        assert rule in earlier
        assert rule.statement.message < number


@given(st.text(max_size=200), st.text(max_size=200))
def test_any_text_is_read(rule: str, sentence: str) -> None:
    found = list(withdrawals.withdrawn_by(sentence, 2, [_rule(rule)]))
    assert bool(found) <= (withdrawals.read(sentence) is not None)


def test_what_restricts() -> None:
    assert withdrawals.restricts("never push")
    assert withdrawals.restricts("ask me first")
    assert not withdrawals.restricts("use tabs")
