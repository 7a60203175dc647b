package io.evenload.kafka.partitioner;

import io.evenload.kafka.client.UnusableException;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * Reads a JSON text (RFC 8259) strictly, as values of Java: Map, List, String, Boolean, null, Long where a number is
 * written as an integer and fits, else Double. A library would be on the class path of every producer.
 */
final class Json {
    private static final int DEPTH_MAX = 20;

    private final String text;
    private int at;

    private Json(String text) {
        this.text = text;
    }

    /**
     * The value that a text is.
     *
     * @throws UnusableException it is none.
     */
    static Object read(byte[] utf8) throws UnusableException {
        try {
            Json json = new Json(StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(utf8)).toString());
            Object value = json.value(0);
            json.skipSpace();
            if (json.at < json.text.length()) {
                throw json.wrong();
            }
            return value;
        } catch (CharacterCodingException error) {
            throw new UnusableException("it is no UTF-8");
        }
    }

    /** As a JSON string, quotes included. */
    static String quoted(String text) {
        StringBuilder quoted = new StringBuilder(text.length() + 2).append('"');
        for (int at = 0; at < text.length(); at++) {
            char character = text.charAt(at);
            if (character == '"' || character == '\\') {
                quoted.append('\\').append(character);
            } else if (character < ' ' || Character.isSurrogate(character)) {
                quoted.append(String.format("\\u%04x", (int) character));
            } else {
                quoted.append(character);
            }
        }
        return quoted.append('"').toString();
    }

    private Object value(int depth) throws UnusableException {
        if (depth > DEPTH_MAX) {
            throw new UnusableException("its JSON is nested too deeply");
        }
        skipSpace();
        switch (peek()) {
            case '{':
                return object(depth);
            case '[':
                return array(depth);
            case '"':
                return string();
            case 't':
                return word("true", Boolean.TRUE);
            case 'f':
                return word("false", Boolean.FALSE);
            case 'n':
                return word("null", null);
            default:
                return number();
        }
    }

    private Map<String, Object> object(int depth) throws UnusableException {
        Map<String, Object> object = new LinkedHashMap<>();
        if (begins('{', '}')) {
            return object;
        }
        do {
            skipSpace();
            String name = string();
            skipSpace();
            take(':');
            object.put(name, value(depth + 1));
        } while (goesOn('}'));
        return object;
    }

    private List<Object> array(int depth) throws UnusableException {
        List<Object> array = new ArrayList<>();
        if (begins('[', ']')) {
            return array;
        }
        do {
            array.add(value(depth + 1));
        } while (goesOn(']'));
        return array;
    }

    /** Takes the first bracket; whether the second follows, which it then takes as well. */
    private boolean begins(char first, char last) throws UnusableException {
        take(first);
        skipSpace();
        if (peek() != last) {
            return false;
        }
        at++;
        return true;
    }

    private boolean goesOn(char last) throws UnusableException {
        skipSpace();
        if (peek() == ',') {
            at++;
            return true;
        }
        take(last);
        return false;
    }

    private String string() throws UnusableException {
        take('"');
        StringBuilder string = new StringBuilder();
        while (true) {
            char character = peek();
            at++;
            if (character == '"') {
                return string.toString();
            }
            if (character < ' ') {
                throw wrong();
            }
            string.append(character == '\\' ? escaped() : character);
        }
    }

    private char escaped() throws UnusableException {
        char character = peek();
        at++;
        switch (character) {
            case '"':
            case '\\':
            case '/':
                return character;
            case 'b':
                return '\b';
            case 'f':
                return '\f';
            case 'n':
                return '\n';
            case 'r':
                return '\r';
            case 't':
                return '\t';
            case 'u':
                return unicode();
            default:
                throw wrong();
        }
    }

    private char unicode() throws UnusableException {
        int code = 0;
        for (int digit = 0; digit < 4; digit++) {
            int value = Character.digit(peek(), 16);
            if (value < 0 || peek() > 'f') {
                throw wrong();
            }
            code = code << 4 | value;
            at++;
        }
        return (char) code;
    }

    private Object word(String word, Object value) throws UnusableException {
        if (!text.startsWith(word, at)) {
            throw wrong();
        }
        at += word.length();
        return value;
    }

    private Object number() throws UnusableException {
        int begin = at;
        if (peek() == '-') {
            at++;
        }
        if (peek() == '0') {
            at++;
        } else {
            digits();
        }
        boolean isInteger = true;
        if (isNext('.')) {
            isInteger = false;
            at++;
            digits();
        }
        if (isNext('e') || isNext('E')) {
            isInteger = false;
            at++;
            if (isNext('+') || isNext('-')) {
                at++;
            }
            digits();
        }
        String digits = text.substring(begin, at);
        if (isInteger) {
            try {
                return Long.valueOf(digits);
            } catch (NumberFormatException error) {
                return Double.valueOf(digits); // too large for one
            }
        }
        return Double.valueOf(digits);
    }

    private void digits() throws UnusableException {
        int begin = at;
        while (at < text.length() && text.charAt(at) >= '0' && text.charAt(at) <= '9') {
            at++;
        }
        if (at == begin) {
            throw wrong();
        }
    }

    private boolean isNext(char character) {
        return at < text.length() && text.charAt(at) == character;
    }

    private char peek() throws UnusableException {
        if (at >= text.length()) {
            throw new UnusableException("its JSON ends too soon");
        }
        return text.charAt(at);
    }

    private void take(char character) throws UnusableException {
        if (peek() != character) {
            throw wrong();
        }
        at++;
    }

    private void skipSpace() {
        while (at < text.length() && " \t\n\r".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
    }

    private UnusableException wrong() {
        return new UnusableException("it is no JSON at character " + at);
    }
}
