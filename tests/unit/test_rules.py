"""Rules: recognised by their wording, withdrawn, stated anew."""

import pytest

from proxy.compaction import rules
from proxy.compaction.rules import Statement


def _statement(text: str, message: int = 1) -> Statement:
    return Statement(text, message, 0, len(text), True, rules.subject(text))


RULES = [
    "Always run the linter first.",
    "From now on answer in French.",
    "Please do not touch the schema.",
    "Don't add dependencies.",
    "I prefer tabs over spaces.",
    "I'd rather see short answers.",
    "Only edit files below src/.",
    "No external network calls from the sandbox.",
    "Keep the public interface as it is.",
    "You must ask before you delete anything.",
    "Wait until I have reviewed the plan.",
    "Report all times in UTC.",
    "For status reports, show clocks in Pacific Time.",
    "HARD CONSTRAINT: the ceiling is $500.",
    "- Rule: metric units",
    "Could you please always cite the file?",
    "If a request could harm somebody, stop and escalate.",
    "Bitte niemals auf main pushen.",
    "Antworte ab jetzt auf Deutsch.",
    "Verwende nur die Standardbibliothek.",
    "Réponds toujours en français.",
    "Ne modifie jamais la base.",
    "No toques la base de datos.",
    "A partir de ahora responde en español.",
    "Non modificare mai il file di configurazione.",
    "D'ora in poi usa solo TypeScript.",
    "Não altere a API pública.",
    "Use apenas a biblioteca padrão.",
    "永远不要修改公共接口。",
    "从现在开始请用中文回答。",
    "提交之前必须运行测试。",
    "今後は日本語で答えてください。",
    "テストは必ず実行すること。",
    "main 브랜치에 푸시하지 마세요.",
    "앞으로는 항상 테스트를 실행해 주세요.",
    "Никогда не трогай продакшен.",
    "Впредь отвечай по-русски.",
    "Nooit naar main pushen.",
    "Zawsze uruchamiaj testy.",
    "Leave the vendored folder alone.",
    "Treat the fixtures as read-only.",
    "Ask me before installing packages.",
    "Wait for my go-ahead before deploying.",
    "Answer briefly.",
    "Be concise.",
    "Commit messages in the imperative mood.",
    "One PR per feature.",
    "Two spaces, not tabs.",
    "I hate long paragraphs.",
    "We never deploy on Fridays.",
    "Our budget for API calls is 20 dollars a day.",
    "Use the metric system.",
    "Deployments happen on Tuesdays exclusively.",
    "Frag mich, bevor du etwas installierst.",
    "Sin dependencias externas.",
    "Sans dépendances externes.",
    "安装任何包之前先问我。",
    "コメントは英語で書いて。",
    "설치하기 전에 물어봐 주세요.",
    "Спрашивай меня перед установкой пакетов.",
]


@pytest.mark.parametrize("sentence", RULES)
def test_rules_are_recognised(sentence: str) -> None:
    assert rules.is_rule(sentence)


@pytest.mark.parametrize(
    "sentence",
    [
        "Fix the import.",
        "I don't know why it fails.",
        "The code does not compile.",
        "Why is it always slow?",
        "Please go on.",
        "Let us review the module layout.",
        "Look into the failing job and repair it.",
        "Das ist der Fehler.",
        "It seems to use an old version.",
        "There are no files in that folder.",
        "I listened to music while it was running.",
        "Am 3. Mai lief es noch.",
        "Create a script that converts CSV to JSON.",
        "We see a memory leak in the worker.",
        "Merge the two functions.",
        "Mach weiter.",
        "Sigue con el siguiente paso.",
        "次に進んで。",
        "请继续。",
        "ok",
    ],
)
def test_other_sentences_are_not(sentence: str) -> None:
    assert not rules.is_rule(sentence)


@pytest.mark.parametrize(
    ("sentence", "withdrawn"),
    [
        ("You may push to main again.", [1]),
        ("Forget the rule about French.", [2]),
        ("The restriction on src/legacy no longer applies.", [3]),
        ("Scratch that.", [6]),
        ("Forget that rule.", [6]),
        ("Du darfst jetzt auf main pushen.", [4]),
        ("La règle sur le schéma ne s'applique plus.", [5]),
        ("关于公共接口的规则取消。", [6]),
        ("You can now run the tests.", []),
        ("The tests are no longer needed.", []),
        ("You no longer have to answer in French.", [2]),
    ],
)
def test_a_withdrawal_meets_the_rule_that_it_speaks_of(sentence: str, withdrawn: list[int]) -> None:
    earlier = [
        _statement("Never push to main.", 1),
        _statement("Always answer in French.", 2),
        _statement("Do not touch src/legacy.", 3),
        _statement("Bitte niemals auf main pushen.", 4),
        _statement("Ne modifie jamais le schéma.", 5),
        _statement("永远不要修改公共接口。", 6),
    ]
    assert rules.withdraws(sentence)
    assert [rule.message for rule in rules.withdrawn_by(sentence, earlier)] == withdrawn


@pytest.mark.parametrize(
    "sentence",
    [
        *("Never push.", "Run it again.", "修复它。", "The job is slow.", "Ignore the flaky job."),
        *("Remove the push to main from the script.", "Can we drop the rule about French?"),
        *("Do not forget the rule about main.", "Vergiss die Regel nicht.", "别忘了规则。"),
        *("The file is gone.", "Cancel the running job."),
    ],
)
def test_most_sentences_withdraw_nothing(sentence: str) -> None:
    assert not rules.withdraws(sentence)


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("The port is 8080.", "The port is 9090.", True),
        ("Deadline: 2027-01-02", "Deadline: 2027-03-04", True),
        ("RULE: Budget cap is $300 total.", "RULE: Budget cap is $650 total.", True),
        ("On-call this week is Ann Lee.", "On-call this week is Bo Ray.", True),
        ("Keep lines under 80 characters.", "Keep lines under 100 characters.", True),
        ("Step 3 is done.", "Step 4 is done.", False),
        ("Fix issue 12.", "Fix issue 15.", False),
        ("Never open port 80.", "Never open port 443.", False),
        ("Do not touch a_1.py.", "Do not touch b_2.py.", False),
        ("The production region is eu-1.", "The staging region is eu-2.", False),
    ],
)
def test_only_the_value_of_the_same_thing_is_stated_anew(old: str, new: str, same: bool) -> None:
    assert (rules.pattern(old) == rules.pattern(new) != "") is same


def test_a_sentence_without_a_value_has_no_pattern() -> None:
    assert rules.pattern("The build is green.") == ""
    assert rules.pattern("Never push.") == ""


@pytest.mark.parametrize(
    ("old", "new", "alike"),
    [
        (
            "The production database runs in region eu-1.",
            "Production's database is hosted in the eu-2 region.",
            True,
        ),
        ("Project spending ceiling is $500.", "Conference spending ceiling is $300.", False),
        ("The port is 80.", "The port is 80, as I said.", False),
        ("Never push.", "Never commit.", False),
    ],
)
def test_a_restatement_in_other_words_is_a_hint(old: str, new: str, alike: bool) -> None:
    assert rules.restates(_statement(new, 2), _statement(old)) is alike


def test_exact_statements() -> None:
    assert rules.has_value("It is `main`.")
    assert rules.has_value("Owner: Ann")
    assert not rules.has_value("It is slow.")
    assert rules.is_labelled("**Owner:** Ann")
    assert not rules.is_labelled("owner Ann")
