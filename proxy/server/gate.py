"""Which upstream, credential and rules a request is handled by: settings, made ready for use."""

from dataclasses import replace
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path

from multidict import CIMultiDict

from proxy.compactor.ports import Rules
from proxy.compactor.requests import Handling
from proxy.server.hints import NO_HINTS, Hints
from proxy.settings import Profile, Settings, SettingsError, key_of
from proxy.upstream.headers import with_credential
from proxy.upstream.routes import CHAT_TARGET, Base, Route


class Gate:
    """The settings of one moment; a reload makes a new one."""

    def __init__(self, settings: Settings) -> None:
        """Resolve keys and prompt file.

        Raises:
            SettingsError: when no upstream is named or a key variable is not set.
        """
        if settings.upstream.base_url is None:
            raise SettingsError(
                "upstream.base_url: name the upstream, for example "
                "--upstream http://127.0.0.1:8080/v1"
            )
        self.settings = settings
        self.base = Base.of(settings.upstream.base_url)
        key = key_of(settings.upstream.key_variable, "upstream.key_variable")
        self._key = key.get_secret_value() if key else None
        prompt = settings.compaction.prompt_file
        self._instruction = _read_prompt(prompt) if prompt else None
        self._profiles = tuple(_Prepared(profile, self) for profile in settings.profiles)
        self._default_rules = self.rules_for(None)
        self._profile_of = lru_cache(maxsize=1024)(self._find_profile)

    def rules_for(self, profile: Profile | None) -> Rules:
        """Return the rules of a profile, or the general ones."""
        compaction = self.settings.compaction
        return Rules(
            self.settings.policy(profile),
            (profile.fallback if profile and profile.fallback else compaction.fallback),
            compaction.deadline_seconds,
            self._instruction,
            compaction.background,
        )

    def _find_profile(self, model: str) -> "_Prepared | None":
        return next((p for p in self._profiles if fnmatchcase(model, p.profile.model)), None)

    def default_headers(self, headers: CIMultiDict[str]) -> CIMultiDict[str]:
        """Return the headers for the default upstream."""
        return headers if self._key is None else with_credential(headers, self._key)

    def handling(
        self,
        model: str,
        headers: CIMultiDict[str],
        output_field: str,
        target: str = CHAT_TARGET,
        tenant: bytes = b"",
        hints: Hints = NO_HINTS,
    ) -> Handling:
        """Choose where a request for `model` goes and where its summaries come from.

        Args:
            model: as the request names it.
            headers: outbound headers of the request.
            output_field: the field that it uses for its output limit.
            target: its path and query; summaries of the same model are asked for there, too, since
                some hosts keep the model and the version of their API in them.
            tenant: whose request it is.
            hints: what the request itself says.
        """
        route, prepared = self._route(model, headers, output_field, target, tenant, hints.window)
        rules = prepared.rules if prepared else self._default_rules
        if hints.threshold is not None:
            rules = replace(rules, policy=replace(rules.policy, threshold=hints.threshold))
        summarizer = self.settings.compaction.summarizer
        if summarizer is None or summarizer == model:
            return Handling(route, route, rules)
        summary_route, _ = self._route(summarizer, headers, "max_tokens", CHAT_TARGET, tenant, None)
        return Handling(route, summary_route, rules)

    def _route(
        self,
        model: str,
        headers: CIMultiDict[str],
        output_field: str,
        target: str,
        tenant: bytes,
        hint: int | None,
    ) -> "tuple[Route, _Prepared | None]":
        prepared = self._profile_of(model)
        window = self.settings.upstream.context_window
        if prepared is None:
            sent = self.default_headers(headers)
            route = Route(self.base, model, sent, window, output_field, target, tenant, hint)
            return route, None
        if prepared.base is not None:
            # The default upstream's window says nothing about another server.
            window = None
        window = prepared.profile.context_window or window
        if prepared.base is None and prepared.key is None:
            sent = self.default_headers(headers)
        else:
            # A credential never goes to another upstream than its own.
            sent = with_credential(headers.copy(), prepared.key or "")
        base = prepared.base or self.base
        return Route(base, model, sent, window, output_field, target, tenant, hint), prepared


def _read_prompt(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        raise SettingsError(f"compaction.prompt_file: {path} is not a readable text file") from None


class _Prepared:
    """A profile with its base URL read and its key resolved."""

    def __init__(self, profile: Profile, gate: Gate) -> None:
        self.profile = profile
        self.base = Base.of(profile.base_url) if profile.base_url else None
        key = key_of(profile.key_variable, f"profiles ({profile.model}) key_variable")
        self.key = key.get_secret_value() if key else None
        self.rules = gate.rules_for(profile)
