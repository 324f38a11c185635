"""Rules: recognised by their wording, withdrawn, stated anew."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.compaction.ledger import rules
from proxy.compaction.ledger.rules import Statement


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
    # in passing, with a typo, with a tag, as a request
    "oh and always tag me in the commit message",
    "so I looked at the parser, please fix it, and never log a password",
    "alwyas run the formatter",
    "neever delete backups",
    "Don't send anything to the list, ok?",
    "Bitte nie auf main pushen, ja?",
    "Könntest du bitte immer zuerst die Tests laufen lassen?",
    # conditions that come back
    "If anything is unclear, ask me.",
    "When you add a dependency, pin its version.",
    "For any query, use parameter binding.",
    "I need you to run the formatter after every edit.",
    # what holds here
    "Our style guide forbids wildcard imports.",
    "We can't use libraries under that licence.",
    "It's crucial that we support old browsers.",
    "All changes need to be signed.",
    "Absolutely no changes to the login.",
    "Keep `part.py` under 400 lines.",
    "At no point should a password be logged.",
    "Use snake_case for variables.",
    "Type annotations everywhere, please.",
    "Kommentare im Code bitte auf Englisch.",
    "Lass die Finger von der Datenbank.",
    "Denk dran: die Datenbank ist schreibgeschützt.",
    "Pas de commentaires dans le code.",
    "Il faut toujours demander avant d'installer un paquet.",
    "Pour toutes les réponses, reste bref.",
    "Antes de cada commit hay que pasar el linter.",
    "Nada de emojis nas mensagens.",
    "Todas as funções devem ter testes.",
    "Prima di ogni commit esegui i test.",
    "Gebruik onder geen beding root.",
    "Elke functie moet een docstring hebben.",
    "Każda funkcja musi mieć opis.",
    "Pod żadnym pozorem nie usuwaj danych.",
    "Her fonksiyonun bir aç\u0131klamas\u0131 olmal\u0131.",
    "Lütfen emoji kullanma.",
    "Hiçbir koşulda veritaban\u0131na dokunma.",
    "すべての関数に型ヒントを付けること。",
    "모든 함수에는 타입 힌트가 있어야 합니다.",
    "请不要在回答里使用表情符号\uff0c好吗\uff1f",
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
        # what is or was
        "The function never returns when the list is empty.",
        "This has always been slow.",
        "The page always shows the old value after saving.",
        "Our customers never complained.",
        "we've never had this problem",
        "The user must have clicked twice.",
        "That must be why it is red.",
        "Every time I run it I get an error.",
        "All tests pass now.",
        "Only two tests failed.",
        "I can't log in with the new account.",
        "Nobody knows why it was written like this.",
        "from now on it fails with 404",
        # a task, with what the thing is to do
        "Write a function that never throws.",
        "Implement a parser that must handle brackets.",
        "Add a check so that users never see a stack trace.",
        "Fix the crash that happens whenever the list is empty.",
        "Show me every file that imports it.",
        # figures of speech and choices
        "Don't know why it fails.",
        "No problem.",
        "never mind",
        "Keep going.",
        "I prefer the second design, go on with it.",
        # questions
        "Should we always close the connection?",
        "为什么测试总是失败\uff1f",
        "왜 테스트가 항상 실패하나요?",
        "Pourquoi le test échoue toujours ?",
        # logs and programs
        "2024-05-01 12:00:03 WARN the group is never ready",
        'raise ValueError("must be positive")',
        "TypeError: cannot read properties of undefined",
        # the same in other languages
        "Der Server startet nie.",
        "Ça ne marche jamais.",
        "Il plante toujours au démarrage.",
        "Nunca había visto este error.",
        "No funciona.",
        "Non funziona mai.",
        "O botão nunca responde.",
        "De knop doet nooit iets.",
        "Nigdy tego nie widziałem.",
        "Это никогда не работает.",
        "Buton hiçbir zaman çal\u0131şm\u0131yor.",
        "这个函数从来没有返回过。",
        "请继续。",
        "ok",
    ],
)
def test_other_sentences_are_not(sentence: str) -> None:
    assert not rules.is_rule(sentence)


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
        ("The port is 8080.", "the port is now 8081", True),
        ("Das Budget ist 300 €.", "Das Budget ist jetzt 500 €.", True),
        ("The page is at https://a.example.", "The page is at https://b.example.", True),
        ("Note: never touch a_1.py.", "Note: never touch b_2.py.", False),
        ("The policy is: do not touch a.py", "The policy is: do not touch b.py", False),
        ("Keep issue 12 open.", "Keep issue 15 open.", False),
        ("The build takes 30 minutes.", "The build takes 5 minutes.", False),
        ("Merge PR 12 by Friday.", "Merge PR 15 by Friday.", False),
        ("Keep 10.0.0.1 untouched.", "Keep 10.0.0.2 untouched.", False),
        ("Use 2 spaces in YAML.", "Use 4 spaces in Python.", False),
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
        ("Never push to main.", "Reminder: never push to main!", False),
        ("Max upload size is 5 MB.", "Max image size is 2 MB.", False),
        ("Never touch a_1.py.", "Never touch b_2.py.", False),
        ("The answer to question 1 is 42.", "The answer to question 2 is 7.", False),
        ("We deploy to region eu-1.", "we moved to region us-2", True),
        ("Use tabs for indentation.", "from now on spaces for indentation again", True),
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


@pytest.mark.parametrize(
    ("new", "old", "one"),
    [
        ("The port is 80.", "The port is 90.", True),
        ("The port is now 80.", "The port is 90.", True),
        ("On-call is Ann Lee.", "On-call is Bo Ray.", True),
        ("The deadline is May for Ann.", "The deadline is June for Bo.", False),
    ],
)
def test_sentences_may_differ_in_one_value(new: str, old: str, one: bool) -> None:
    assert rules.is_one_value(new, old) is one


@given(st.text(max_size=300))
def test_any_text_is_looked_at(text: str) -> None:
    assert rules.is_one_value(text, text)
    assert not rules.restates(_statement(text, 2), _statement(text))
    if not rules.pattern(text):
        return
    # A pattern is a line: white space and case do not tell two apart.
    assert rules.pattern(text) == " ".join(rules.pattern(text).split())


@pytest.mark.parametrize("sentence", RULES)
def test_a_rule_is_one_whatever_its_quotes_are(sentence: str) -> None:
    """Curly quotes and dashes make no other language of a sentence."""
    assert rules.is_rule(sentence.replace("'", "\u2019"))
    assert rules.is_rule(f"\u2014 {sentence}")


def test_words_in_latin_letters_stand_apart_from_dense_script() -> None:
    assert "vendo" in rules.subject("不要修改vendor目录。")


@pytest.mark.parametrize(
    "sentence",
    [
        "Note: the linter config lives in pyproject.toml under tool.ruff.",
        "Standup notes: yesterday focused on schema cleanup, today on tests.",
        "Hinweis: die Tabelle liegt im Schema public.",
    ],
)
def test_a_note_is_a_statement_and_no_rule(sentence: str) -> None:
    assert not rules.is_rule(sentence)
    assert rules.is_labelled(sentence)


@pytest.mark.parametrize(
    "sentence",
    [
        "If a test takes longer than 10 seconds, mark it as slow.",
        "A partir de agora nunca altere a tabela clientes.",
    ],
)
def test_these_hold_from_then_on(sentence: str) -> None:
    assert rules.is_rule(sentence)


def test_what_has_another_number_is_another_thing() -> None:
    def stated(text: str, message: int) -> Statement:
        return Statement(text, message, 0, len(text), False, rules.subject(text))

    old = stated("Please look at part 1 now.", 1)
    assert not rules.restates(stated("Please look at part 2 now.", 2), old)
    old = stated("The port of part 1 is 80.", 1)
    assert rules.restates(stated("The port of part 1 changed to 90.", 2), old)


@pytest.mark.parametrize("sentence", ["That is all for now.", "That's it for this session."])
def test_a_closing_word_is_no_rule(sentence: str) -> None:
    assert not rules.is_rule(sentence)
