"""Which language a user writes."""

import pytest

from proxy.compaction.language import language_of


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Bitte prüfe die Tests und ändere nicht die Schnittstelle.", "German"),
        ("Vérifie les tests et ne change pas le nom des colonnes dans la base.", "French"),
        ("Revisa las pruebas y no cambies el nombre de los campos, por favor.", "Spanish"),
        ("Controlla i test e non cambiare il nome della tabella nel database.", "Italian"),
        ("Verifique os testes e não mude o nome da tabela, por favor.", "Portuguese"),
        (
            "src/reads.py のテストを直してください。",
            "Japanese",
        ),
        (
            "请修复 src/reads.py 里的测试\uff0c不要改接口。",
            "Chinese",
        ),
        ("src/reads.py 테스트를 고쳐 주세요.", "Korean"),
        (
            "Проверь тесты и не меняй этот файл.",
            "Russian",
        ),
        ("Please check the tests and do not change the schema.", ""),
        ("src/reads.py", ""),
        ("", ""),
    ],
)
def test_the_language_is_told_where_it_is_plain(text: str, language: str) -> None:
    assert language_of([text]) == language


def test_what_was_pasted_does_not_count() -> None:
    paste = "```\n" + "the tests are in the folder and the log is not there\n" * 20 + "```"
    said = "Bitte prüfe die Tests und ändere nicht die Schnittstelle."
    assert language_of([said, f"Warum ist das so?\n{paste}"]) == "German"


def test_what_was_said_last_counts() -> None:
    english = "Please check the tests and do not change the schema of it. " * 80
    german = "Bitte prüfe die Tests und ändere nicht die Schnittstelle. " * 80
    assert language_of([english, german]) == "German"
    assert language_of([german, english]) == ""
